package simulated

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// Compiled judges as the agent does.
func Compiled(node string, state *netpol.State, nodes []*corev1.Node) func(packet.Packet) bool {
	snapshot := compile.Compile(compile.Input{
		NodeName: node, Features: compile.AllFeatures(),
		Namespaces: state.Namespaces, Pods: state.Pods, Nodes: nodes, NetworkPolicies: state.Policies,
	})
	return func(p packet.Packet) bool { return snapshot.Evaluate(p).Verdict == policy.Allow }
}

// CompiledLong judges as the agent does, with rules beside those of the state that
// match nothing: an evaluator may treat many rules otherwise than few.
func CompiledLong(node string, state *netpol.State, nodes []*corev1.Node) func(packet.Packet) bool {
	state = state.Clone()
	for i, policy := range state.Policies {
		policy = policy.DeepCopy()
		filler := netpol.NewPolicy("", "", fillers()...).Spec
		policy.Spec.Ingress = slices.Concat(filler.Ingress, policy.Spec.Ingress)
		if len(policy.Spec.PolicyTypes) > 0 || len(policy.Spec.Egress) > 0 { // else they would be a policy type
			policy.Spec.Egress = slices.Concat(filler.Egress, policy.Spec.Egress)
		}
		state.Policies[i] = policy
	}
	return Compiled(node, state, nodes)
}

// fillers are rules that match nobody: a network reserved for documentation, a
// label that no pod has, a port name that none declares.
func fillers() []netpol.Part {
	var parts []netpol.Part
	for i := range int32(10) {
		block := netpol.Block(fmt.Sprintf("198.51.100.%d/28", 16*i)).Except(fmt.Sprintf("198.51.100.%d/30", 16*i))
		parts = append(parts,
			netpol.Ingress(netpol.From(block)),
			netpol.Egress(netpol.To(block), netpol.At(netpol.Range("UDP", 80, 90+i))),
			netpol.Ingress(netpol.From(netpol.Pods("pod=nobody").InNamespaces("")), netpol.At(netpol.Range("TCP", 70+i, 80+i))),
			netpol.Egress(netpol.At(netpol.Named("TCP", "nobody"))))
	}
	return parts
}

// Oracle judges as tests/oracle does, which shares no code with the agent.
func Oracle(node string, state *netpol.State, nodes []*corev1.Node) func(packet.Packet) bool {
	cluster := oracle.Cluster{
		Namespaces: state.Namespaces, Pods: state.Pods, Nodes: nodes, NetworkPolicies: state.Policies,
		EndPort: true, SCTP: true,
	}
	return func(p packet.Packet) bool { return oracle.Judge(cluster, node, p).Allowed() }
}
