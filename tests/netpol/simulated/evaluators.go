package simulated

import (
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

// Oracle judges as tests/oracle does, which shares no code with the agent.
func Oracle(node string, state *netpol.State, nodes []*corev1.Node) func(packet.Packet) bool {
	cluster := oracle.Cluster{
		Namespaces: state.Namespaces, Pods: state.Pods, Nodes: nodes, NetworkPolicies: state.Policies,
		EndPort: true, SCTP: true,
	}
	return func(p packet.Packet) bool { return oracle.Judge(cluster, node, p).Allowed() }
}
