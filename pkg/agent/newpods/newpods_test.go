package newpods

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

const (
	namespace = "kube-system"
	account   = "netpol-agent"
)

// api has the pods of agents.
type api struct {
	*fake.Clientset
	mu   sync.Mutex
	pods map[string]*corev1.Pod
	err  error
}

func newAPI() *api {
	a := &api{Clientset: fake.NewClientset(), pods: map[string]*corev1.Pod{}}
	a.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		list := &corev1.PodList{}
		fields := action.(clienttesting.ListAction).GetListRestrictions().Fields
		for _, p := range a.pods {
			if node, _ := fields.RequiresExactMatch("spec.nodeName"); p.Spec.NodeName == node && action.GetNamespace() == namespace {
				list.Items = append(list.Items, *p)
			}
		}
		return true, list, a.err
	})
	return a
}

// set adds a pod, or changes one.
func (a *api) set(p *corev1.Pod, change func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p = p.DeepCopy()
	change(p)
	a.pods[p.Name] = p
}

func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// member is an agent on a node of the test, all of which have the loopback address.
type member struct {
	pod         *corev1.Pod
	certificate *tls.Certificate
	agents      *Agents
	board       *Board
	file        string
}

func (a *api) member(t *testing.T, node string) *member {
	t.Helper()
	m := &member{board: NewBoard(), file: filepath.Join(t.TempDir(), "key")}
	message, err := tlskey.Make(m.file)
	if err != nil {
		t.Fatal(err)
	}
	if m.certificate, err = tlskey.OfAgent(node, m.file); err != nil {
		t.Fatal(err)
	}
	m.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: account, HostNetwork: true},
		Status: corev1.PodStatus{PodIP: "127.0.0.1", InitContainerStatuses: []corev1.ContainerStatus{{
			Name: "key", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}}},
	}
	m.agents = NewAgents(a.CoreV1().Pods(namespace), node, m.certificate.Leaf)
	a.set(m.pod, func(*corev1.Pod) {})
	return m
}

// serve serves the board of a member and returns its port.
func (m *member) serve(t *testing.T) string { return m.serveWith(t, m.board) }

// serveWith serves h in place of the board.
func (m *member) serveWith(t *testing.T, h http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		access := &httpserver.Access{Client: m.agents.Check, Streams: tlskey.IsAgents, Certificate: httpserver.Fixed(m.certificate)}
		done <- httpserver.New(h, nil, prometheus.NewRegistry()).Run(ctx, listener, access)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// ask starts an Asker of a member, and returns what it hears, by node.
func (m *member) ask(t *testing.T, port string) (a *Asker, heard chan string, stop func()) {
	t.Helper()
	heard = make(chan string, 1000)
	a = NewAsker(Config{
		Peers: Peers{Agents: m.agents, Certificate: m.certificate, Port: port}, Registerer: prometheus.NewRegistry(),
		NodesAt: func(addr netip.Addr) []string {
			if addr.Is4() && addr.As4()[0] == 10 {
				return []string{fmt.Sprintf("node-%d", addr.As4()[1])}
			}
			return nil
		},
		Set: func(node string, s []clusterstate.Sandbox) { heard <- node + ": " + text(s) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return a, heard, stop
}

func text(sandboxes []clusterstate.Sandbox) string {
	var all []string
	for _, s := range sandboxes {
		all = append(all, fmt.Sprintf("%s/%s %s %v", s.Namespace, s.Name, s.UID, s.Addrs))
	}
	return strings.Join(all, ", ")
}

func sandboxAt(name, addr string) clusterstate.Sandbox {
	return clusterstate.Sandbox{Namespace: "x", Name: name, UID: types.UID("uid-" + name), Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
}

// await returns when it is heard what a test wants. It skips repetitions.
func await(t *testing.T, heard <-chan string, want string) {
	t.Helper()
	var got []string
	for limit := time.After(time.Minute); ; {
		select {
		case line := <-heard:
			got = append(got, line)
			if line == want {
				return
			}
		case <-limit:
			t.Fatalf("heard %q, want %q", got, want)
		}
	}
}

// awaitEnd waits for the end of a conversation in which nothing is heard.
func awaitEnd(t *testing.T, heard <-chan string) {
	t.Helper()
	select {
	case line := <-heard:
		if line != "node-2: " {
			t.Fatalf("heard %q, want nothing", line)
		}
	case <-time.After(time.Minute):
		t.Fatal("the conversation does not end")
	}
}

// TestAgentsReport: an agent gets the new pods of a node for which it asks, and later ones without
// asking again.
func TestAgentsReport(t *testing.T) {
	api := newAPI()
	one, two := api.member(t, "node-1"), api.member(t, "node-2")
	asker, heard, _ := one.ask(t, two.serve(t))
	two.board.Set([]clusterstate.Sandbox{sandboxAt("a", "10.2.0.1")})
	asker.Want(netip.MustParseAddr("192.0.2.1")) // of no node
	asker.Want(netip.MustParseAddr("10.2.0.1"))
	await(t, heard, "node-2: x/a uid-a [10.2.0.1]")
	two.board.Set([]clusterstate.Sandbox{sandboxAt("b", "10.2.0.2"), sandboxAt("a", "10.2.0.1")})
	await(t, heard, "node-2: x/b uid-b [10.2.0.2], x/a uid-a [10.2.0.1]")
	asker.mu.Lock()
	defer asker.mu.Unlock()
	if n := len(asker.nodes); n != 1 {
		t.Errorf("%d nodes are asked, want 1", n)
	}
}

// TestWhoIsNoAgent: neither side believes who does not have the key that its pod publishes.
func TestWhoIsNoAgent(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"no key":                       func(p *corev1.Pod) { p.Status.InitContainerStatuses = nil },
		"another key":                  func(p *corev1.Pod) { message(p, "agent-key sha256:"+strings.Repeat("ab", 32)) },
		"half a key":                   func(p *corev1.Pod) { message(p, "agent-key sha256:ab") },
		"an init container that fails": func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].State.Terminated.ExitCode = 1 },
		"another service account":      func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" },
		"another node":                 func(p *corev1.Pod) { p.Spec.NodeName = "node-9" },
	} {
		t.Run("the asked one has "+name, func(t *testing.T) {
			api := newAPI()
			one, two := api.member(t, "node-1"), api.member(t, "node-2")
			api.set(two.pod, change)
			refused(t, one, two)
		})
		t.Run("the asker has "+name, func(t *testing.T) {
			api := newAPI()
			one, two := api.member(t, "node-1"), api.member(t, "node-2")
			one.agents.account = account // it does not know that it is none
			api.set(one.pod, change)
			refused(t, one, two)
		})
	}
	t.Run("the API server does not answer", func(t *testing.T) {
		api := newAPI()
		one, two := api.member(t, "node-1"), api.member(t, "node-2")
		api.fail(errors.New("no answer"))
		refused(t, one, two)
	})
	t.Run("the agent of a third node answers", func(t *testing.T) {
		api := newAPI()
		one, three := api.member(t, "node-1"), api.member(t, "node-3")
		api.member(t, "node-2")
		asker, heard, _ := one.ask(t, three.serve(t))
		three.board.Set([]clusterstate.Sandbox{sandboxAt("a", "10.2.0.1")})
		asker.Want(netip.MustParseAddr("10.2.0.1"))
		awaitEnd(t, heard)
	})
}

// TestAnswersOfAChangedAgent: what is not an answer ends the conversation.
func TestAnswersOfAChangedAgent(t *testing.T) {
	many := `{"sandboxes":[` + strings.Repeat("{},", bounds.LineSandboxes) + "{}]}\n"
	for name, answer := range map[string]string{
		"not JSON":           "hello\n",
		"an address of none": `{"sandboxes":[{"namespace":"x","name":"a","addrs":["10.2.0.256"]}]}` + "\n",
		"a name of no pod":   `{"sandboxes":[{"name":"` + strings.Repeat("a", bounds.Name+1) + `"}]}` + "\n",
		"too many sandboxes": many,
		"an endless line":    strings.Repeat("a", bounds.LineBytes+1),
		"nothing":            "",
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPI()
			one, two := api.member(t, "node-1"), api.member(t, "node-2")
			asker, heard, stop := one.ask(t, two.serveWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, answer)
			})))
			asker.Want(netip.MustParseAddr("10.2.0.1"))
			awaitEnd(t, heard)
			stop()
			noneHeard(t, heard)
			if n := testutil.ToFloat64(asker.failed); n != 1 {
				t.Errorf("%v failures are counted, want 1", n)
			}
		})
	}
}

func message(p *corev1.Pod, text string) {
	p.Status.InitContainerStatuses[0].State.Terminated.Message = text
}

// refused checks that one hears nothing of two, and counts that.
func refused(t *testing.T, one, two *member) {
	t.Helper()
	asker, heard, stop := one.ask(t, two.serve(t))
	two.board.Set([]clusterstate.Sandbox{sandboxAt("a", "10.2.0.1")})
	asker.Want(netip.MustParseAddr("10.2.0.1"))
	awaitEnd(t, heard)
	stop()
	noneHeard(t, heard)
	if n := testutil.ToFloat64(asker.failed); n != 1 {
		t.Errorf("%v failures are counted, want 1", n)
	}
}

func noneHeard(t *testing.T, heard <-chan string) {
	t.Helper()
	for len(heard) > 0 {
		if line := <-heard; line != "node-2: " {
			t.Errorf("heard %q", line)
		}
	}
}

// TestAnAgentWhoseKeyIsNew: an agent that was replaced is believed, and its predecessor no longer.
func TestAnAgentWhoseKeyIsNew(t *testing.T) {
	api := newAPI()
	one, before := api.member(t, "node-1"), api.member(t, "node-2")
	if err := one.agents.check(t.Context(), "node-2", before.certificate.Leaf, one.agents.asks); err != nil {
		t.Fatal(err)
	}
	after := api.member(t, "node-2") // replaces the pod of this name
	if err := one.agents.check(t.Context(), "node-2", after.certificate.Leaf, one.agents.asks); err != nil {
		t.Errorf("the new agent: %v", err)
	}
	if err := one.agents.check(t.Context(), "node-2", before.certificate.Leaf, one.agents.asks); err == nil {
		t.Error("the former agent is believed after its successor")
	}
}

// TestManyClients: clients that name nodes cause a bounded number of lists, and do not keep the agent
// from asking.
func TestManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI()
		one, two, three := api.member(t, "node-1"), api.member(t, "node-2"), api.member(t, "node-3")
		unknown := func(node string) {
			t.Helper()
			if one.agents.Check(t.Context(), &x509.Certificate{Subject: pkix.Name{CommonName: node}}) == nil {
				t.Fatal("a client without a key is an agent")
			}
		}
		lists := func(when string, want int) {
			t.Helper()
			if n := len(api.Actions()); n != want {
				t.Errorf("%s: %d lists, want %d", when, n, want)
			}
		}
		for range 100 {
			unknown("node-2")
		}
		lists("many keys of one node", 2) // one of them is for this agent's own pod
		time.Sleep(bounds.ListInterval)
		unknown("node-2")
		lists("later", 3)
		if err := one.agents.Check(t.Context(), two.certificate.Leaf); err != nil {
			t.Errorf("the agent of the node: %v", err)
		}
		lists("the agent of the node", 3)

		time.Sleep(time.Minute)
		for i := range 100 {
			unknown(fmt.Sprintf("node-%d", 100+i))
		}
		lists("many nodes", 3+bounds.ListBurst)
		if err := one.agents.check(t.Context(), "node-3", three.certificate.Leaf, one.agents.asks); err != nil {
			t.Errorf("what the agent asks for itself: %v", err)
		}
		if n := len(one.agents.known); n != 2 {
			t.Errorf("%d nodes are remembered, want those with agents", n)
		}
	})
}

// TestNamesOfNoNode: what cannot be the name of a node is neither remembered nor asked for.
func TestNamesOfNoNode(t *testing.T) {
	api := newAPI()
	one := api.member(t, "node-1")
	for _, name := range []string{"", "Node", "node-1,metadata.name=x", "node/1", " node-1", "node-1\n", strings.Repeat("a", bounds.Name+1), strings.Repeat("a", 240<<10)} {
		if one.agents.Check(t.Context(), &x509.Certificate{Subject: pkix.Name{CommonName: name}}) == nil {
			t.Errorf("%.20q is a node with an agent", name)
		}
	}
	if len(api.Actions()) != 0 || len(one.agents.known) != 0 {
		t.Errorf("%d requests, %d nodes are remembered", len(api.Actions()), len(one.agents.known))
	}
}

// TestRememberedNodes: the agents of a bounded number of nodes are remembered, the latest.
func TestRememberedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI().member(t, "node-1").agents
		for i := range 2 * bounds.KnownNodes {
			a.remember(nodeName(i), []agent{{}})
			time.Sleep(time.Millisecond)
		}
		if len(a.known) != bounds.KnownNodes || len(a.remembered(nodeName(bounds.KnownNodes)).agents) != 1 {
			t.Errorf("%d nodes are remembered", len(a.known))
		}
	})
}

func TestBoardReportsNewSandboxesOnly(t *testing.T) {
	b := NewBoard()
	b.Set([]clusterstate.Sandbox{sandboxAt("old", "10.2.0.1")})
	for k := range b.seen {
		b.seen[k] = b.seen[k].Add(-reportFor)
	}
	b.Set([]clusterstate.Sandbox{sandboxAt("new", "10.2.0.2"), sandboxAt("old", "10.2.0.1")})
	reported, _ := b.recent()
	if got := fmt.Sprint(reported.Sandboxes); !strings.Contains(got, "new") || strings.Contains(got, "old") {
		t.Errorf("reported %s", got)
	}
	many := slices.Repeat([]clusterstate.Sandbox{sandboxAt("new", "10.2.0.3")}, 2*bounds.LineSandboxes)
	b.Set(many)
	if len(first(b.recent()).Sandboxes) != bounds.LineSandboxes {
		t.Error("the sandboxes of a report are not bounded")
	}
}

// TestLinesAreBounded: an agent that sends without end is not read faster than its lines are believed, and
// one that sends no line loses its connection.
func TestLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var believed atomic.Int64
		a := NewAsker(Config{Registerer: prometheus.NewRegistry(), Set: func(string, []clusterstate.Sandbox) { believed.Add(1) }})
		a.begin("node-2")
		body, agent := io.Pipe()
		ended := make(chan error)
		go func() { ended <- a.read(t.Context(), "node-2", body) }()
		sent := make(chan struct{})
		began := time.Now()
		go func() {
			defer close(sent)
			for time.Since(began) < 10*time.Second {
				_, _ = io.WriteString(agent, "{}\n")
			}
		}()
		<-sent
		if n, most := believed.Load(), int64(11*bounds.LineRate); n > most || n < most/2 {
			t.Errorf("%d lines are believed in ten seconds, want %d", n, most)
		}
		quiet := time.Now()
		if err := <-ended; err == nil || time.Since(quiet) > 2*bounds.LineSilence {
			t.Errorf("after %v without a line: %v", time.Since(quiet), err)
		}
	})
}

// TestStreamsEnd: after a time, an agent has to prove itself again.
func TestStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		NewBoard().ServeHTTP(&client{}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path, nil))
		if lasted := time.Since(began); lasted != bounds.StreamTime {
			t.Errorf("a stream lasts %v, want %v", lasted, bounds.StreamTime)
		}
	})
}

func first(t report, _ <-chan struct{}) report { return t }

// client is a connection that takes each line at once.
type client struct {
	http.ResponseWriter
	lines []string
}

func (c *client) Write(b []byte) (int, error) {
	c.lines = append(c.lines, string(b))
	return len(b), nil
}

func (c *client) Flush()                           {}
func (c *client) SetReadDeadline(time.Time) error  { return nil }
func (c *client) SetWriteDeadline(time.Time) error { return nil }

// TestManyPodsStart: when more pods start than an agent takes lines, none waits behind those of earlier
// ones: each line has the latest.
func TestManyPodsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := NewBoard(), &client{}
		ctx, cancel := context.WithCancel(t.Context())
		var served sync.WaitGroup
		served.Go(func() { b.ServeHTTP(c, httptest.NewRequestWithContext(ctx, http.MethodGet, Path, nil)) })
		synctest.Wait()
		takes := rate.NewLimiter(bounds.LineRate, bounds.LineRate) // as an asker
		for i := range 1000 {
			before := len(c.lines)
			name := fmt.Sprint("pod-", i)
			b.Set([]clusterstate.Sandbox{sandboxAt(name, "10.2.0.1")})
			time.Sleep(10 * time.Millisecond) // a hundred pods a second
			synctest.Wait()
			if n := len(c.lines) - before; !takes.AllowN(time.Now(), n) {
				t.Fatalf("an agent is sent more lines than it takes, %d after %d pods", len(c.lines), i)
			}
			if before < len(c.lines) && !strings.Contains(c.lines[len(c.lines)-1], `"`+name+`"`) {
				t.Fatalf("after %s started, a line is %s", name, c.lines[len(c.lines)-1])
			}
		}
		time.Sleep(time.Second / reportRate)
		synctest.Wait()
		if last := c.lines[len(c.lines)-1]; !strings.Contains(last, `"pod-999"`) {
			t.Errorf("the last line is %s", last)
		}
		cancel()
		served.Wait()
	})
}

// TestTooManyNodes: a sweep over addresses of many nodes asks a bounded number of them.
func TestTooManyNodes(t *testing.T) {
	reg := prometheus.NewRegistry()
	a := NewAsker(Config{Registerer: reg})
	for i := range 2 * bounds.AskedNodes {
		if got := a.begin(fmt.Sprint(i)); got != (i < bounds.AskedNodes) {
			t.Errorf("node %d is asked: %v", i, got)
		}
	}
	if n, err := testutil.GatherAndCount(reg, "netpol_new_pods_errors_total"); n != 2 || err != nil {
		t.Errorf("%d kinds of errors, %v; want 2", n, err)
	}
	if n := testutil.ToFloat64(a.skipped); n != bounds.AskedNodes {
		t.Errorf("%v nodes are counted as skipped, want %d", n, bounds.AskedNodes)
	}
	a.nodes["0"] = &conversation{until: time.Now().Add(-time.Second), rest: true}
	if !a.begin("further") {
		t.Error("a further node is not asked after one has failed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"sandboxes":[{"namespace":"x","name":"a","uid":"u","addrs":["10.0.0.1","fd00::1"]}]}`))
	f.Add([]byte(`{"sandboxes":[{"addrs":["fe80::1%eth0"]},{}]}`))
	f.Add([]byte(`{"sandboxes":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		sandboxes, err := parse(line)
		if err != nil {
			return
		}
		for _, s := range sandboxes {
			if max(len(s.Namespace), len(s.Name), len(s.UID)) > bounds.Name || len(s.Addrs) > bounds.LineAddresses {
				t.Errorf("%v exceeds the bounds", s)
			}
		}
	})
}
