package netns

import (
	"testing"

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
	pending := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_pending_total") }
	before, dialed := pending(labtest.Metrics(t, agent)), make(chan struct{})
	go func() {
		defer close(dialed)
		o.wantDial("a pod that is reported while its first packet waits, without an API server", lab.TCP, only, "x/later", lab.Connected)
	}()
	labtest.Until(t, agent, before+1, pending)
	board.Set(append(o.report("x/db", nil), o.report("x/later", nil)...))
	<-dialed
}
