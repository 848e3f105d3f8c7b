package reachability

import (
	"maps"
	"reflect"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// sameness tells which endpoints are the same in two clusters, with the same rules. What they send
// to each other does not change.
type sameness struct {
	before, after *Cluster
	// comparable is set if both clusters have the same nodes and ranges of addresses.
	comparable bool
	policies   map[policy.Ref]bool // those that are equal, without generations
}

func newSameness(before, after *Cluster) *sameness {
	s := &sameness{before: before, after: after, policies: map[policy.Ref]bool{}}
	s.comparable = before.in.Features == after.in.Features && reflect.DeepEqual(before.in.CIDRGroups, after.in.CIDRGroups) &&
		maps.Equal(before.nodes, after.nodes) && reflect.DeepEqual(before.labels, after.labels)
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		s.comparable = s.comparable && slices.Equal(before.snapshot.Ranges(d), after.snapshot.Ranges(d))
	}
	was := policiesOf(before.in)
	for ref, is := range policiesOf(after.in) {
		s.policies[ref] = equalPolicies(was[ref], is)
	}
	return s
}

func policiesOf(in clusterstate.Input) map[policy.Ref]compile.Object {
	policies := make(map[policy.Ref]compile.Object, len(in.Policies))
	for _, o := range in.Policies {
		policies[policy.Ref{Kind: compile.KindOf(o).Name, Namespace: o.GetNamespace(), Name: o.GetName()}] = o
	}
	return policies
}

// equalPolicies reports whether two policies of one kind mean the same. The first may be nil.
func equalPolicies(a, b compile.Object) bool {
	if a == nil || a == b {
		return a == b
	}
	if !maps.Equal(a.GetAnnotations(), b.GetAnnotations()) {
		return false
	}
	if network, ok := a.(*networkingv1.NetworkPolicy); ok {
		return reflect.DeepEqual(network.Spec, b.(*networkingv1.NetworkPolicy).Spec)
	}
	kind := compile.KindOf(a)
	return reflect.DeepEqual(kind.AdminSpec(a), kind.AdminSpec(b))
}

// has reports whether an endpoint is the same in both clusters.
func (s *sameness) has(was, is *Endpoint) bool {
	if !s.comparable || !was.equal(is) {
		return false
	}
	for _, addr := range was.Addrs() {
		if s.before.disputes.has(addr) || s.after.disputes.has(addr) {
			return false
		}
		a, b := s.before.snapshot.Endpoint(was.knownAt(addr)), s.after.snapshot.Endpoint(is.knownAt(addr))
		if (a == nil) != (b == nil) || a != nil && !s.samePod(a, b) {
			return false
		}
	}
	return true
}

func (s *Endpoint) equal(o *Endpoint) bool {
	return s.Name == o.Name && s.Kind == o.Kind && s.Node == o.Node && s.v4 == o.v4 && s.v6 == o.v6 && slices.Equal(s.ports, o.ports)
}

func (s *sameness) samePod(a, b *policy.Endpoint) bool {
	return a.String() == b.String() && a.Account == b.Account && a.AwaitsStatus == b.AwaitsStatus && slices.Equal(a.Ports, b.Ports) &&
		a.Labels.Equal(b.Labels) && a.NamespaceLabels.Known() == b.NamespaceLabels.Known() && a.NamespaceLabels.Equal(b.NamespaceLabels) &&
		s.sameRules(a.Ingress, b.Ingress) && s.sameRules(a.Egress, b.Egress)
}

// sameRules reports whether two chains are of the same policies.
func (s *sameness) sameRules(a, b *policy.Chain) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Policies, b.Policies, func(x, y *policy.Ref) bool {
		was, is := *x, *y
		was.Generation, is.Generation = 0, 0
		return was == is && s.policies[is]
	})
}
