package compile

import (
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

var gateCIDRGroups = &Gate{
	"CIDRGroups", Proposed, "NPEP-182", "`cidrGroups`, named sets of networks, as peers of administrators' policies",
	func(f *Features) *bool { return &f.CIDRGroups },
}

// KindCIDRGroup is a named set of networks that policies refer to (NPEP-182). Like administrators'
// policies it is a custom resource.
var KindCIDRGroup = kind[proposed.CIDRGroup](Kind{
	Name:     "CIDRGroup",
	Resource: proposed.CIDRGroupVersion.WithResource("cidrgroups"),
	Install:  proposed.InstallCIDRGroup,
})

// ReadsCIDRGroups reports whether policies may refer to CIDRGroups, if enabled are the
// administrators' kinds that are enforced.
func ReadsCIDRGroups(enabled []*Kind, f Features) bool {
	return f.CIDRGroups && slices.ContainsFunc(enabled, func(k *Kind) bool { return k.HasProposals })
}

// CIDRGroup is the part of a CIDRGroup that policies need. It is immutable.
type CIDRGroup struct {
	Name     string
	Labels   labels.Set
	Prefixes []netip.Prefix

	unreadable []string // CIDRs as written
}

// NewCIDRGroup reads a group. It shares g's labels.
func NewCIDRGroup(g *proposed.CIDRGroup) *CIDRGroup {
	read := &CIDRGroup{Name: g.Name, Labels: g.Labels}
	for _, cidr := range g.Spec.CIDRs {
		if prefix, err := parsePrefix(string(cidr)); err == nil {
			read.Prefixes = append(read.Prefixes, prefix)
		} else {
			read.unreadable = append(read.unreadable, string(cidr))
		}
	}
	return read
}

// Equal reports whether two readings of a group are the same.
func (g *CIDRGroup) Equal(o *CIDRGroup) bool {
	return g.Name == o.Name && maps.Equal(g.Labels, o.Labels) && slices.Equal(g.Prefixes, o.Prefixes) && slices.Equal(g.unreadable, o.unreadable)
}

// CIDRGroups are all groups that are known, by name. Nil is for callers that see single policies:
// groups then match nothing, and whether they exist is no finding.
type CIDRGroups map[string]*CIDRGroup

// NewCIDRGroups reads groups.
func NewCIDRGroups(groups []*proposed.CIDRGroup) CIDRGroups {
	all := CIDRGroups{}
	for _, g := range groups {
		all[g.Name] = NewCIDRGroup(g)
	}
	return all
}

// cidrGroups compiles a peer of CIDRGroups (CN-44). A group that does not exist, or is not known
// here, is unreadable: a denial of it would deny nothing.
func (r *adminRule) cidrGroups(at location, p *proposed.EgressPeer) policy.Peer {
	r.refersToGroups = true
	peer := policy.Peer{Blocks: []policy.Block{}} // by address, even if all groups are empty
	for _, g := range r.groupsOf(at, p.CIDRGroups) {
		r.usedGroups = append(r.usedGroups, g)
		for _, prefix := range g.Prefixes {
			peer.Blocks = append(peer.Blocks, policy.Block{Prefix: prefix})
		}
		for _, cidr := range g.unreadable {
			r.losePeer(at, policy.InvalidCIDR, "%q in CIDRGroup %s is not a CIDR", cidr, g.Name)
		}
	}
	return peer
}

// groupsOf returns the known groups that s names or selects. The peer is lost if one is missing.
func (r *adminRule) groupsOf(at location, s *proposed.CIDRGroups) []*CIDRGroup {
	switch {
	case count(len(s.Names) > 0, s.Selector != nil) != 1:
		r.losePeer(at, policy.InvalidPeer, "exactly one of names and selector is needed")
		return nil
	case s.Selector != nil:
		return r.selectedGroups(at.child("selector"), s.Selector)
	}
	var found []*CIDRGroup
	for i, name := range s.Names {
		switch g := r.groups[name]; {
		case g != nil:
			found = append(found, g)
		case r.groups != nil:
			r.losePeer(at.child("names").index(i), policy.UnknownCIDRGroup, "CIDRGroup %q is not known", name)
		}
	}
	return found
}

func (r *adminRule) selectedGroups(at location, s *metav1.LabelSelector) []*CIDRGroup {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		r.losePeer(at, policy.InvalidSelector, "%v", err)
		return nil
	}
	var found []*CIDRGroup
	for _, name := range slices.Sorted(maps.Keys(r.groups)) {
		if selector.Matches(r.groups[name].Labels) {
			found = append(found, r.groups[name])
		}
	}
	if len(found) == 0 && r.groups != nil {
		r.losePeer(at, policy.UnknownCIDRGroup, "no CIDRGroup is known that the selector selects")
	}
	return found
}
