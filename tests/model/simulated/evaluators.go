package simulated

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Compiled evaluates like the agent.
func Compiled(node string, state *netpol.State, nodes []*corev1.Node) func(Packet) bool {
	return evaluate(clusterstate.Compile(input(node, state, nodes)))
}

func input(node string, state *netpol.State, nodes []*corev1.Node) clusterstate.Input {
	in := clusterstate.Input{NodeName: node, Features: allProposals(), Namespaces: state.Namespaces, Pods: state.Pods, Nodes: nodes}
	for _, p := range state.AllPolicies() {
		if group, ok := Object(p).(*proposed.CIDRGroup); ok {
			in.CIDRGroups = append(in.CIDRGroups, group)
		} else {
			in.Policies = append(in.Policies, Object(p))
		}
	}
	return in
}

// allProposals enables every feature.
func allProposals() compile.Features {
	features := compile.AllFeatures()
	for _, g := range compile.Gates {
		*g.Field(&features) = true
	}
	return features
}

// Object returns a policy, or a CIDRGroup, in the Go type that the agent reads it into.
func Object(p netpol.Policy) compile.Object {
	switch o := p.(type) {
	case *v1beta1.ClusterNetworkPolicy:
		return readAs(compile.KindClusterNetworkPolicy, o)
	case *unstructured.Unstructured:
		if o.GetKind() == compile.KindCIDRGroup.Name {
			return readAs(compile.KindCIDRGroup, o)
		}
		return readAs(compile.KindClusterNetworkPolicy, o)
	}
	return p
}

func readAs(kind *compile.Kind, o any) compile.Object {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	read := kind.New()
	if err := json.Unmarshal(text, read); err != nil {
		panic(err)
	}
	return read
}

func evaluate(snapshot *policy.Snapshot) func(Packet) bool {
	return func(p Packet) bool {
		return snapshot.Evaluate(policy.Query{Packet: p.Packet, ToHost: p.ToHost}).Allowed()
	}
}

// CompiledLong evaluates like the agent, with additional rules that match nothing, because the
// evaluator treats many rules differently from few.
func CompiledLong(node string, state *netpol.State, nodes []*corev1.Node) func(Packet) bool {
	state = state.Clone()
	for i, policy := range state.Policies {
		policy = policy.DeepCopy()
		filler := netpol.NewPolicy("", "", fillers()...).Spec
		policy.Spec.Ingress = slices.Concat(filler.Ingress, policy.Spec.Ingress)
		if len(policy.Spec.PolicyTypes) > 0 || len(policy.Spec.Egress) > 0 { // otherwise egress rules would add a policy type
			policy.Spec.Egress = slices.Concat(filler.Egress, policy.Spec.Egress)
		}
		state.Policies[i] = policy
	}
	if len(state.AdminNetworkPolicies)+len(state.BaselineAdminNetworkPolicies)+len(state.ClusterNetworkPolicies) > 0 {
		state.Apply(
			netpol.NewAdminNetworkPolicy("filler", 0, adminFillers()...),
			netpol.NewClusterNetworkPolicy("filler", v1beta1.BaselineTier, 0, adminFillers()...))
	}
	return Compiled(node, state, nodes)
}

// fillers are rules that match nothing: a network reserved for documentation, a label that no pod
// has, a port name that no pod declares.
func fillers() []netpol.Part {
	var parts []netpol.Part
	for i := range int32(10) {
		block := netpol.Block(fmt.Sprintf("198.51.100.%d/28", 16*i)).Except(fmt.Sprintf("198.51.100.%d/30", 16*i))
		parts = append(parts,
			netpol.Ingress(netpol.From(block)),
			netpol.Egress(netpol.To(block), netpol.At(netpol.Range("UDP", 80, 90+i))),
			netpol.Ingress(netpol.From(netpol.Pods("pod=none").InNamespaces("")), netpol.At(netpol.Range("TCP", 70+i, 80+i))),
			netpol.Egress(netpol.At(netpol.Named("TCP", "none"))))
	}
	return parts
}

// adminFillers are the same for administrators' policies.
func adminFillers() []netpol.AdminPart {
	var parts []netpol.AdminPart
	for i := range int32(10) {
		network := netpol.Block(fmt.Sprintf("198.51.100.%d/28", 16*i))
		parts = append(parts,
			netpol.DenyFrom(netpol.Pods("pod=none")).At(netpol.Range("TCP", 70+i, 80+i)),
			netpol.AllowFrom(netpol.Namespaces("")).At(netpol.Named("", "none")),
			netpol.PassTo(network, netpol.Nodes("no=node")),
			netpol.DenyTo(network).At(netpol.Range("UDP", 80, 90+i)),
			netpol.AllowTo(netpol.DomainNames("none.test"), netpol.Pods("pod=none")))
	}
	return parts
}

// Oracle evaluates with tests/model/oracle, which shares no code with the agent.
func Oracle(node string, state *netpol.State, nodes []*corev1.Node) func(Packet) bool {
	cluster := oracle.Cluster{
		Namespaces: state.Namespaces, Pods: state.Pods, Nodes: nodes,
		EndPort: true, SCTP: true, NodePeers: true, DomainNames: true, IngressByAddress: true, ServiceAccounts: true, GroupPeers: true, MatchAll: true,
	}
	for _, p := range state.AllPolicies() {
		cluster.Add(Object(p))
	}
	return func(p Packet) bool {
		return oracle.Evaluate(cluster, node, oracle.Query{Packet: p.Packet, ToHost: p.ToHost}).Allowed()
	}
}
