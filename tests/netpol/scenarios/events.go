package scenarios

import (
	"fmt"
	"strings"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// events are all orders in which a namespace with a pod, a policy for the pod, and a label
// in the policy's selector are created and deleted. The result does not depend on the
// order.
var events = orders()

// event is one change in these scenarios.
type event struct {
	name   string
	change func(*State)
}

// orders returns a scenario for each order of the three events. A pod cannot exist before
// its namespace, so both are one event.
func orders() []Scenario {
	all := []event{
		{"namespace and pod", func(s *State) {
			s.AddNamespace(NewNamespace("w", "ns=w"))
			s.AddPod(NewPod("w", "a", "node-1", []int32{80, 81}, "pod=a"))
		}},
		{"policy", apply(
			NewPolicy("x", "from-guests", Subject("pod=a"), Ingress(From(Pods("pod=a").InNamespaces("guest=yes")))),
			NewPolicy("x", "deny-out", Subject("role=sealed"), DenyEgress()))},
		{"labels", func(s *State) {
			s.LabelPod("x/b", "role=sealed")
			s.LabelNamespace("y", "guest=yes")
		}},
	}
	var scenarios []Scenario
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var names []string
		var steps []Step
		happened := make(map[string]bool)
		for _, i := range order {
			names = append(names, all[i].name)
			happened[all[i].name] = true
			steps = append(steps, Step{Name: all[i].name, Change: all[i].change, Want: expectAfter(happened)})
		}
		scenarios = append(scenarios, Scenario{
			Name: "events in the order " + strings.Join(names, ", "), Statements: np("NP-53", "NP-54"),
			Model: Model{Pods: []string{"a", "b"}}, Steps: append(steps, undo(happened)...),
		})
	}
	return scenarios
}

// undo deletes the pod with its namespace, and then the policy.
func undo(happened map[string]bool) []Step {
	return []Step{
		{Name: "the new pod becomes a guest, too", Change: func(s *State) { s.LabelNamespace("w", "guest=yes") }, Want: func(r *Reachability) {
			expectAfter(happened)(r)
			r.ExpectPeer("w/a", "x/a", true)
		}},
		{Name: "namespace and pod go", Change: func(s *State) { s.DeleteNamespace("w") }, Want: expectAfter(map[string]bool{"policy": true, "labels": true})},
		{Name: "the policies go", Change: withdraw("x/from-guests", "x/deny-out")},
	}
}

// expectAfter returns the expectations after these events.
func expectAfter(happened map[string]bool) func(*Reachability) {
	policy, labels := happened["policy"], happened["labels"]
	return func(r *Reachability) {
		if !policy {
			return
		}
		r.ExpectAllIngress("x/a", false)
		if labels {
			r.ExpectAllEgress("x/b", false)
			r.ExpectPeer("y/a", "x/a", true)
		}
	}
}

// lives are about pods that are created, deleted and recreated.
var lives = []Scenario{
	{
		Name: "a new pod meets old policies", Statements: np("NP-53", "NP-54"),
		Steps: []Step{
			{Name: "policies", Change: apply(
				NewPolicy("x", "from-y", Ingress(From(Namespaces("ns=y")))),
				NewPolicy("y", "out-80", Subject("pod=d"), Egress(At(TCP(80))))),
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/*", false)
					r.ExpectPeer("y/*", "x/*", true)
				}},
			{Name: "a client", Change: func(s *State) { s.AddPod(NewPod("y", "d", "node-2", s.Ports, "pod=d")) },
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/*", false)
					r.ExpectPeer("y/*", "x/*", true)
					r.ExpectAllEgress("y/d", false)
					r.For(TCP(80)).ExpectAllEgress("y/d", true)
				}},
			{Name: "a server", Change: func(s *State) { s.AddPod(NewPod("x", "d", "node-1", s.Ports, "pod=d")) },
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/*", false)
					r.ExpectPeer("y/*", "x/*", true)
					r.ExpectAllEgress("y/d", false)
					r.For(TCP(80)).ExpectAllEgress("y/d", true)
				}},
		},
	},
	{
		Name: "a pod is recreated under its name", Statements: np("NP-51"),
		Steps: []Step{
			{Name: "policy", Change: apply(NewPolicy("x", "from-y-a", Subject("pod=a"), Ingress(From(Pods("pod=a").InNamespaces("ns=y"))))), Want: onlyYA},
			{Name: "the client is recreated", Change: func(s *State) { s.RecreatePod("y/a") }, Want: onlyYA},
			{Name: "the server is recreated", Change: func(s *State) { s.RecreatePod("x/a") }, Want: onlyYA},
		},
	},
	{
		Name: "a pod takes the address of one that has ended", Statements: np("NP-50"),
		Steps: []Step{
			{Name: "y/a may", Change: apply(NewPolicy("x", "from-y-a", Subject("pod=a"), Ingress(From(Pods("pod=a").InNamespaces("ns=y"))))), Want: onlyYA},
			{Name: "it ends, and z/d gets its address", Change: func(s *State) { takeOver(s, "y/a", "z", "d") }, Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
			}},
		},
	},
	{
		Name: "a pod takes the address of a subject that has ended", Statements: np("NP-50"),
		Steps: []Step{
			{Name: "x/a is closed", Change: apply(NewPolicy("x", "deny-a", Subject("pod=a"), DenyIngress(), DenyEgress())), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectAllEgress("x/a", false)
			}},
			{Name: "it ends, and z/d, which is open, gets its address", Change: func(s *State) { takeOver(s, "x/a", "z", "d") }},
		},
	},
}

func onlyYA(r *Reachability) {
	r.ExpectAllIngress("x/a", false)
	r.ExpectPeer("y/a", "x/a", true)
}

// takeOver ends a pod, which keeps its addresses in its status, and gives them to a new
// pod.
func takeOver(s *State, ended, namespace, name string) {
	s.ChangePod(ended, endPod)
	old := s.Pod(ended)
	pod := NewPod(namespace, name, old.Spec.NodeName, s.Ports, fmt.Sprintf("pod=%s", name))
	pod.Status = *old.Status.DeepCopy()
	pod.Status.Phase = runningPhase
	s.AddPod(pod)
}
