package compile

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Policy is a compiled policy of any kind: rules that are ready to be put into
// chains. It is immutable.
type Policy struct {
	Kind *Kind
	Ref  policy.Ref
	Tier policy.Tier
	// Subject selects the pods; nil selects none.
	Subject *policy.PodSelector
	// Findings are the parts of the policy that could not be honoured.
	Findings []policy.Finding
	// Enforcement is read from the policy's annotation.
	Enforcement Enforcement

	spec      any               // of the object, by pointer
	annotated map[string]string // by StripAnnotations
	features  Features
	priority  int32
	object    Object
	// refersToGroups is set if the policy refers to CIDRGroups. usedGroups are those that were known.
	refersToGroups bool
	usedGroups     []*CIDRGroup
	// isolates and rules are indexed by direction. Only a NetworkPolicy isolates, and it has no
	// rules for a direction that it does not isolate (NP-5).
	isolates [2]bool
	rules    [2][]policy.Rule
}

// Compare orders policies for evaluation: by tier, priority, kind and name (CN-1, CN-2, CN-7,
// CN-8).
func (p *Policy) Compare(o *Policy) int {
	return cmp.Or(
		cmp.Compare(p.Tier, o.Tier),
		cmp.Compare(p.priority, o.priority),
		cmp.Compare(p.Ref.Kind, o.Ref.Kind),
		cmp.Compare(p.Ref.Name, o.Ref.Name),
	)
}

// Equal reports whether two policies come from equal objects and were compiled with the same
// features and groups.
func (p *Policy) Equal(o *Policy) bool {
	return p.Ref == o.Ref && maps.Equal(p.annotated, o.annotated) && p.features == o.features &&
		slices.Equal(p.usedGroups, o.usedGroups) && reflect.DeepEqual(p.spec, o.spec)
}

// RefersToCIDRGroups reports whether the policy depends on CIDRGroups.
func (p *Policy) RefersToCIDRGroups() bool { return p.refersToGroups }

// WithCIDRGroups returns the policy compiled again with these groups.
func (p *Policy) WithCIDRGroups(groups CIDRGroups) *Policy {
	return p.Kind.Compile(p.object, p.features, groups)
}

// Rules returns the rules of direction d in evaluation order. Callers must not modify them.
func (p *Policy) Rules(d policy.Direction) []policy.Rule { return p.rules[d] }

// Applies reports whether the policy applies to the traffic of its subjects in
// direction d: one without rules for a direction applies only if it isolates (NP-4,
// CN-6).
func (p *Policy) Applies(d policy.Direction) bool {
	return p.isolates[d] || len(p.rules[d]) > 0
}

// HoldsUnknown reports whether packets of an unknown pod of this node in direction d must wait
// until the pod is known, because the policy may deny them.
func (p *Policy) HoldsUnknown(d policy.Direction) bool {
	// The receiver's node cannot tell a new pod of this node from the node itself, so nothing may
	// leave before the pod is known (CN-35).
	return p.isolates[d] || p.denies(d) || d == policy.Egress && p.denies(policy.Ingress)
}

// HoldsUnknownToHost reports whether packets of an unknown pod of this node to the node itself must
// wait until the pod is known, because the policy may deny them. A NetworkPolicy never denies them.
func (p *Policy) HoldsUnknownToHost() bool {
	return p.Subject != nil && slices.ContainsFunc(p.rules[policy.Egress], func(r policy.Rule) bool { return r.MayDenyHost() })
}

// denies reports whether some rule of direction d denies.
func (p *Policy) denies(d policy.Direction) bool {
	return p.Subject != nil && slices.ContainsFunc(p.rules[d], func(r policy.Rule) bool { return r.Action == policy.Deny })
}

// SelectsNodes reports whether some rule has nodes as peers.
func (p *Policy) SelectsNodes() bool {
	selectsNodes := func(r policy.Rule) bool {
		return slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return peer.Nodes != nil })
	}
	return slices.ContainsFunc(p.rules[policy.Ingress], selectsNodes) || slices.ContainsFunc(p.rules[policy.Egress], selectsNodes)
}

// NamesDomains reports whether some rule has domain names as peers.
func (p *Policy) NamesDomains() bool {
	return slices.ContainsFunc(p.rules[policy.Egress], func(r policy.Rule) bool { return r.NamesDomains() })
}

// StopsPods reports whether some rule of direction d denies or passes pods as peers.
func (p *Policy) StopsPods(d policy.Direction) bool {
	return slices.ContainsFunc(p.rules[d], func(r policy.Rule) bool {
		return r.Action != policy.Allow && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return peer.Pods != nil })
	})
}

// Priority returns the priority of an administrator's policy in its tier, where lower ones come
// first. A kind without priorities comes last.
func (p *Policy) Priority() int32 { return p.priority }
