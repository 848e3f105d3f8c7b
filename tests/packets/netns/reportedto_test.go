package netns

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestReportedPodsThatAdministratorsDeny (CN-35): packets to new pods of another node, whose addresses
// no status ever shows, go by the rules of an administrator as soon as the agent of that node reports
// the pods. Without a report they wait, and are dropped.
func TestReportedPodsThatAdministratorsDeny(t *testing.T) {
	o, api := newOtherAgent(t, newCluster(t, 2, "x/only@1 name=only", "x/except@1 name=except", "x/db@2 role=db", "x/later@2 role=db", "x/secret@2 role=secret"))
	const only = "x/only"     // may send to pods role=db and to no other pod
	const except = "x/except" // may send to all but pods role=secret
	stopAPI := serveAPI(t, o.Nodes[0], withClusterPolicy(t, api,
		`{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: only}, spec: {tier: Admin, priority: 1,
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {name: only}}}}, egress: [
    {name: db, action: Accept, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: db}}}}]},
    {name: rest, action: Deny, to: [{namespaces: {}}]}]}}`,
		`{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: except}, spec: {tier: Admin, priority: 2,
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {name: except}}}}, egress: [
    {name: secret, action: Deny, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: secret}}}}]}]}}`))
	// What a rule denies is refused, what nothing is known of is not answered.
	agent := o.startAsker(labtest.WithAdmin, "--deny=reject")

	o.wantDial("no agent", lab.TCP, only, "x/db", lab.TimedOut)
	o.hang(func() { o.wantDial("an agent that never answers", lab.TCP, except, "x/db", lab.TimedOut) })

	board := newpods.NewBoard()
	board.Set(o.report("x/db", nil))
	stop := o.serve(o.forged, board)
	o.wantDial("an agent with another key", lab.TCP, only, "x/db", lab.TimedOut)
	stop()

	board = newpods.NewBoard()
	stop = o.serve(o.certificate, board)
	defer stop()
	board.Set(o.report("x/db", func(s *clusterstate.Sandbox) { s.UID = "earlier" }))
	o.wantDial("another pod of the name", lab.TCP, only, "x/db", lab.TimedOut)

	endpoints := func(m lab.Metrics) float64 { return m.Sum("netpol_endpoints") }
	known := endpoints(labtest.Metrics(t, agent))
	board.Set(append(o.report("x/db", nil), o.report("x/secret", nil)...))
	labtest.Until(t, agent, known+4, endpoints) // two pods with two addresses
	for _, from := range []string{only, except} {
		o.wantDial("a pod that is reported", lab.UDP, from, "x/db", lab.Connected)
		o.wantDial("a pod that is reported and denied", lab.TCP, from, "x/secret", lab.Refused)
	}
	stopAPI()
	o.whilePending(agent, func() {
		o.wantDial("a pod that is reported while its first packet waits, without an API server", lab.TCP, only, "x/later", lab.Connected)
	}, func() { board.Set(append(o.report("x/db", nil), o.report("x/later", nil)...)) })
}

// dialAll sends a datagram from each address of pods to x/server, all at once, and expects an answer to
// each, or to none.
func (o *otherAgent) dialAll(what string, pods []string, want lab.Outcome) {
	o.t.Helper()
	var dials sync.WaitGroup
	var others atomic.Int64
	for _, pod := range pods {
		for _, addr := range o.Pods["x/server"].Addrs {
			dials.Go(func() {
				answer, err := o.Pods[pod].Probe(o.t.Context(), lab.UDP, netip.AddrPortFrom(addr, 80), 6*time.Second)
				if err != nil || answer.Outcome != want {
					others.Add(1)
				}
			})
		}
	}
	dials.Wait()
	if n := others.Load(); n > 0 {
		o.t.Errorf("%s: %d of %d first packets have another outcome than %v", what, n, 2*len(pods), want)
	}
}

// stalledAPI answers no request for agents until it is released.
type stalledAPI struct {
	http.Handler
	released chan struct{}
}

func (a *stalledAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/namespaces/kube-system/pods") {
		select {
		case <-a.released:
		case <-r.Context().Done():
			return
		}
	}
	a.Handler.ServeHTTP(w, r)
}

// TestHardReportedPodsStartAtOnce: the first packet from each of three hundred addresses of another node
// is decided by what its agent reports, whenever their statuses come, and whether or not there is an API
// server. The agent is asked once.
func TestHardReportedPodsStartAtOnce(t *testing.T) {
	labtest.NeedHard(t)
	named := func(format, label string, count int) (names, specs []string) {
		for i := range count {
			names = append(names, "x/"+fmt.Sprintf(format, i))
			specs = append(specs, names[i]+"@2 "+label)
		}
		return names, specs
	}
	clients, specs := named("client-%d", "role=client", 150)
	later, laterSpecs := named("later-%d", "role=client", 50)
	denied, deniedSpecs := named("denied-%d", "role=other", 5)
	specs = append(append(append(specs, laterSpecs...), deniedSpecs...), "x/server@1 name=server", "x/first@2 role=client")
	o, api := newOtherAgent(t, newCluster(t, 2, specs...))
	put(t, api, policyOf(t, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: x, name: server},
  spec: {podSelector: {matchLabels: {name: server}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}}`))
	stalled := &stalledAPI{Handler: api, released: make(chan struct{})}
	stopAPI := serveAPI(t, o.Nodes[0], stalled)
	o.startAsker()
	board, asked := newpods.NewBoard(), atomic.Int64{}
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		board.ServeHTTP(w, r)
	})
	stop := o.serve(o.certificate, counted)
	reportAll := func(names ...[]string) {
		var all []clusterstate.Sandbox
		for _, n := range names {
			for _, pod := range n {
				all = append(all, o.report(pod, nil)...)
			}
		}
		board.Set(all)
	}

	reportAll(clients, denied, []string{"x/first"})
	o.wantDial("an API server that does not say who the agent is", lab.TCP, "x/first", "x/server", lab.TimedOut)
	close(stalled.released)
	o.dialAll("pods without a status", clients, lab.Connected)
	o.dialAll("pods that are not admitted", denied, lab.TimedOut)
	if n := asked.Load(); n != 1 {
		t.Errorf("the agent of the other node is asked %d times", n)
	}
	stop()
	o.dialAll("pods whose agent is gone", clients, lab.Connected)
	for _, pod := range clients {
		put(t, api, o.Pods[pod].Object)
	}
	o.dialAll("pods whose statuses come", clients, lab.Connected)
	stopAPI()

	reportAll(denied, later)
	defer o.serve(o.certificate, counted)()
	// TCP, because the agent may not be asked again at once: then the second repetition has it asked.
	o.wantDial("without an API server", lab.TCP, later[0], "x/server", lab.Connected)
	o.dialAll("without an API server", later, lab.Connected)
	o.dialAll("pods that are not admitted, without an API server", denied, lab.TimedOut)
	if n := asked.Load(); n != 2 {
		t.Errorf("the agent of the other node is asked %d times, want 2", n)
	}
}
