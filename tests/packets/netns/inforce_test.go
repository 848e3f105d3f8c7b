package netns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// enforcement is a cluster whose objects change at random, with an agent that is asked after each
// change whether it is in force.
type enforcement struct {
	*cluster
	t       *testing.T
	random  *rand.Rand
	api     *apiserver.Server
	stopAPI func()
	args    []string

	agents int // started
	agent  *lab.Agent
	socket string // of agent

	policies [3]*networkingv1.NetworkPolicy // nil if it does not exist
	team     string                         // the label of namespace y
	clients  []*sender
	probes   int
}

// sender is a pod that sends to x/web, from a connection that it keeps and from new ones.
type sender struct {
	pod  *lab.Pod
	app  string     // its label
	kept []net.Conn // by family
}

const silence = 100 * time.Millisecond // in which an answer of the lab arrives

// changed is an object that was changed last.
type changed struct {
	kind string
	metav1.Object
}

func newEnforcement(t *testing.T) *enforcement {
	t.Helper()
	c := newCluster(t, 1, "x/web@1 app=web", "y/a@1 app=web", "y/b@1 app=db")
	e := &enforcement{cluster: c, t: t, random: rand.New(rand.NewPCG(42, 0)), api: apiserver.New(), args: []string{kubeconfig(t)}}
	put(t, e.api, c.Nodes[0].Object(), lab.NewNamespace("x", nil))
	e.setTeam("a")
	for _, pod := range c.Pods {
		put(t, e.api, pod.Object)
	}
	for _, name := range []string{"y/a", "y/b"} {
		e.clients = append(e.clients, e.newSender(c.Pods[name]))
	}
	e.stopAPI = serveAPI(t, c.Nodes[0], e.api)
	e.start()
	return e
}

func (e *enforcement) newSender(pod *lab.Pod) *sender {
	e.t.Helper()
	c := &sender{pod: pod, app: pod.Object.Labels["app"]}
	for _, addr := range e.Pods["x/web"].Addrs {
		conn, err := pod.Dial(e.t.Context(), lab.UDP, netip.AddrPortFrom(addr, 80))
		if err != nil {
			e.t.Fatal(err)
		}
		e.t.Cleanup(func() { conn.Close() })
		c.kept = append(c.kept, conn)
	}
	return c
}

// start starts another agent.
func (e *enforcement) start() {
	e.t.Helper()
	e.agents++
	e.socket = filepath.Join(e.t.TempDir(), fmt.Sprint("agent-", e.agents))
	e.agent = e.startAgent(e.t, lab.AgentConfig{Args: append(e.args, "--probe-socket="+e.socket)})
}

// ask returns what the agent answers about a version, after a wait of up to five seconds.
func (e *enforcement) ask(socket, kind, version string) (*inforce.Answer, error) {
	web := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	response, err := web.Get("http://agent" + inforce.Path + "?" + url.Values{"kind": {kind}, "version": {version}}.Encode())
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", response.Status)
	}
	return inforce.Decode(response.Body)
}

// await returns when the agent has answered that a change is in force.
func (e *enforcement) await(c changed) {
	e.t.Helper()
	var last error
	for end := time.Now().Add(2 * labtest.ChangeTimeout); time.Now().Before(end); {
		answer, err := e.ask(e.socket, c.kind, c.GetResourceVersion())
		if err == nil {
			err = answer.Check(c.kind, c.GetResourceVersion())
		}
		if err == nil {
			return
		}
		last = err
	}
	e.t.Fatalf("%s %s of version %s is not in force: %v", c.kind, c.GetName(), c.GetResourceVersion(), last)
}

func (e *enforcement) setTeam(team string) changed {
	e.t.Helper()
	e.team = team
	o := lab.NewNamespace("y", map[string]string{"team": team})
	put(e.t, e.api, o)
	return changed{"Namespace", o}
}

// change changes a policy, the labels of a client or those of its namespace.
func (e *enforcement) change() changed {
	e.t.Helper()
	switch n := e.random.IntN(10); {
	case n == 0:
		return e.setTeam(map[string]string{"a": "b", "b": "a"}[e.team])
	case n == 1:
		c := e.clients[e.random.IntN(len(e.clients))]
		c.app = map[string]string{"web": "db", "db": "web"}[c.app]
		o := c.pod.Object.DeepCopy()
		o.Labels["app"] = c.app
		put(e.t, e.api, o)
		return changed{"Pod", o}
	}
	i := e.random.IntN(len(e.policies))
	if p := e.policies[i]; p != nil && e.random.IntN(3) == 0 {
		e.policies[i] = nil
		if _, err := e.api.Delete(p); err != nil {
			e.t.Fatal(err)
		}
		return changed{"NetworkPolicy", p}
	}
	p := policyOf(e.t, labtest.Policy("x", fmt.Sprint("policy-", i), e.spec()))
	put(e.t, e.api, p)
	e.policies[i] = p
	return changed{"NetworkPolicy", p}
}

// spec returns the spec of a policy that allows nothing, or the pods with a label in the namespaces of a
// team.
func (e *enforcement) spec() string {
	if e.random.IntN(4) == 0 {
		return "{podSelector: {}, policyTypes: [Ingress]}"
	}
	return fmt.Sprintf("{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: %s}}, podSelector: {matchLabels: {app: %s}}}]}]}",
		[]string{"a", "b"}[e.random.IntN(2)], []string{"web", "db"}[e.random.IntN(2)])
}

// allows reports whether the policies allow a client to send.
func (e *enforcement) allows(c *sender) bool {
	isolated := false
	for _, p := range e.policies {
		if p == nil {
			continue
		}
		isolated = true
		for _, r := range p.Spec.Ingress {
			for _, from := range r.From {
				if from.NamespaceSelector.MatchLabels["team"] == e.team && from.PodSelector.MatchLabels["app"] == c.app {
					return true
				}
			}
		}
	}
	return !isolated
}

// probe sends one packet in each connection that is kept, and in a new one of each client and family.
func (e *enforcement) probe(after string) {
	e.t.Helper()
	var all sync.WaitGroup
	for _, c := range e.clients {
		allowed := e.allows(c)
		for i, kept := range c.kept {
			all.Go(func() { e.expect(after, c, "a connection that it keeps", allowed, kept) })
			fresh, err := c.pod.Dial(e.t.Context(), lab.UDP, netip.AddrPortFrom(e.Pods["x/web"].Addrs[i], 80))
			if err != nil {
				e.t.Fatal(err)
			}
			all.Go(func() {
				defer fresh.Close()
				e.expect(after, c, "a new connection", allowed, fresh)
			})
			e.probes += 2
		}
	}
	all.Wait()
}

// expect sends one packet, and waits for the answer.
func (e *enforcement) expect(after string, c *sender, what string, allowed bool, conn net.Conn) {
	if _, err := conn.Write([]byte("name?")); err != nil {
		e.t.Errorf("%s: %v", c.pod.Name, err)
		return
	}
	wait := silence
	if allowed {
		wait = labtest.ChangeTimeout
	}
	conn.SetReadDeadline(time.Now().Add(wait))
	if _, err := conn.Read(make([]byte, 100)); (err == nil) != allowed {
		e.t.Errorf("after %s, %s sends in %s, and is answered: %v; allowed: %v", after, c.pod.Name, what, err == nil, allowed)
	}
}

// TestWhatIsInForceDecides: as soon as the agent says that a change is in force, packets of new and of
// established connections are decided by it.
func TestWhatIsInForceDecides(t *testing.T) {
	e := newEnforcement(t)
	changes := 100
	if os.Getenv("HARD") != "" {
		changes = 1000
	}
	for i := range changes {
		c := e.change()
		e.await(c)
		e.probe(fmt.Sprintf("change %d, of %s %s", i, c.kind, c.GetName()))
		if t.Failed() {
			return
		}
	}
	t.Logf("%d probes after %d changes", e.probes, changes)
}

// TestNothingIsInForceThatFaultsUndo: the answer is also true after faults.
func TestNothingIsInForceThatFaultsUndo(t *testing.T) {
	labtest.SkipShort(t)
	e := newEnforcement(t)
	for _, fault := range []struct {
		name string
		make func() changed
	}{
		{"another process deletes the table", func() changed {
			c := e.change()
			e.await(c)
			if _, err := e.Nodes[0].Run(t.Context(), "", "nft", "delete", "table", "inet", "netpol-agent"); err != nil {
				t.Fatal(err)
			}
			return c
		}},
		{"another process flushes the table between two changes", func() changed {
			e.await(e.change())
			if _, err := e.Nodes[0].Run(t.Context(), "", "nft", "flush", "table", "inet", "netpol-agent"); err != nil {
				t.Fatal(err)
			}
			return e.change()
		}},
		{"a crash", func() changed {
			c := e.change()
			e.agent.Kill()
			e.start()
			return c
		}},
		{"an outage of the API server", func() changed {
			e.stopAPI()
			c := e.change()
			answer, err := e.ask(e.socket, c.kind, c.GetResourceVersion())
			if err != nil {
				t.Fatal(err)
			}
			if err := answer.Check(c.kind, c.GetResourceVersion()); err == nil || !strings.Contains(err.Error(), "not watched") {
				t.Errorf("without the API server: %v", err)
			}
			e.stopAPI = serveAPI(t, e.Nodes[0], e.api)
			return c
		}},
		{"a hand-over", func() changed {
			old, oldSocket := e.agent, e.socket
			c := e.change()
			e.start()
			if err := labtest.Within(t, func() bool {
				answer, err := e.ask(oldSocket, c.kind, c.GetResourceVersion())
				return err == nil && strings.Contains(answer.Problem, "another agent")
			}); err != nil {
				t.Errorf("the older agent, which does not hold the table any more, still says what is in force: %v", err)
			}
			if err := old.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			return c
		}},
	} {
		for i := range 4 {
			c := fault.make()
			e.await(c)
			e.probe(fmt.Sprintf("%s, %d", fault.name, i))
			if t.Failed() {
				return
			}
		}
	}
}
