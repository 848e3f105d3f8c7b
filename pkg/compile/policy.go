package compile

import (
	"cmp"
	"reflect"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Policy is a compiled policy of any kind: rules that are ready to be put into
// chains. It is immutable.
type Policy struct {
	Kind *Kind
	Ref  policy.Ref
	Tier policy.Tier
	// Subject selects the pods, nil none.
	Subject *policy.PodSelector
	// Findings are what of the policy could not be honoured.
	Findings []policy.Finding
	// Enforcement is what the policy's annotation says of its enforcement.
	Enforcement Enforcement

	spec      any    // of the object, by pointer
	annotated string // the value of EnforcementAnnotation
	features  Features
	priority  int32
	// isolates and rules are by direction. Only a NetworkPolicy isolates, and it
	// has no rules for a direction that it does not isolate (NP-5).
	isolates [2]bool
	rules    [2][]policy.Rule
}

// Compare orders policies as they are evaluated: tier, priority, and for equal
// ones kind and name (CN-1, CN-2, CN-7, CN-8).
func (p *Policy) Compare(o *Policy) int {
	return cmp.Or(
		cmp.Compare(p.Tier, o.Tier),
		cmp.Compare(p.priority, o.priority),
		cmp.Compare(p.Ref.Kind, o.Ref.Kind),
		cmp.Compare(p.Ref.Name, o.Ref.Name),
	)
}

// Equal reports whether two policies come from objects that say the same, and were compiled
// with the same features.
func (p *Policy) Equal(o *Policy) bool {
	return p.Ref == o.Ref && p.annotated == o.annotated && p.features == o.features && reflect.DeepEqual(p.spec, o.spec)
}

// Rules returns the rules of direction d in the order in which they are
// evaluated. They must not be changed.
func (p *Policy) Rules(d policy.Direction) []policy.Rule { return p.rules[d] }

// Applies reports whether the policy applies to the traffic of its subjects in
// direction d: one without rules for a direction applies only if it isolates (NP-4,
// CN-6).
func (p *Policy) Applies(d policy.Direction) bool {
	return p.isolates[d] || len(p.rules[d]) > 0
}

// HoldsUnknown reports whether the packets of a pod of this node in direction d
// have to wait until the pod is known, because the policy may deny them.
func (p *Policy) HoldsUnknown(d policy.Direction) bool {
	// The receiver's node cannot tell a new pod of this node from the node
	// itself, so that nothing may leave before the pod is known (CN-35).
	return p.isolates[d] || p.denies(d) || d == policy.Egress && p.denies(policy.Ingress)
}

// HoldsUnknownToHost reports whether the packets of a pod of this node to the node itself have
// to wait until the pod is known, because the policy may deny them. A NetworkPolicy cannot.
func (p *Policy) HoldsUnknownToHost() bool {
	return p.Subject != nil && slices.ContainsFunc(p.rules[policy.Egress], func(r policy.Rule) bool { return r.MayDenyHost() })
}

// denies reports whether some rule of direction d denies.
func (p *Policy) denies(d policy.Direction) bool {
	return p.Subject != nil && slices.ContainsFunc(p.rules[d], func(r policy.Rule) bool { return r.Action == policy.Deny })
}

// SelectsNodes reports whether some rule has nodes as peers.
func (p *Policy) SelectsNodes() bool {
	return slices.ContainsFunc(p.rules[policy.Egress], func(r policy.Rule) bool {
		return slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return peer.Nodes != nil })
	})
}

// NamesDomains reports whether some rule has domain names as peers.
func (p *Policy) NamesDomains() bool {
	return slices.ContainsFunc(p.rules[policy.Egress], func(r policy.Rule) bool { return r.NamesDomains() })
}

// StopsPods reports whether some rule of direction d denies or passes packets because
// their peer is one of some pods.
func (p *Policy) StopsPods(d policy.Direction) bool {
	return slices.ContainsFunc(p.rules[d], func(r policy.Rule) bool {
		return r.Action != policy.Allow && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return peer.Pods != nil })
	})
}

// Priority returns the priority of an administrator's policy in its tier: lower ones
// come first, and a policy of a kind that has none last.
func (p *Policy) Priority() int32 { return p.priority }
