package oracle

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// groupsOf: CN-44, the existing groups with one of the names or with the labels.
func (c Cluster) groupsOf(s proposed.CIDRGroups) []*proposed.CIDRGroup {
	var found []*proposed.CIDRGroup
	for _, g := range c.CIDRGroups {
		if s.Selector == nil && slices.Contains(s.Names, g.Name) || s.Selector != nil && len(s.Names) == 0 && selects(*s.Selector, g.Labels) {
			found = append(found, g)
		}
	}
	return found
}

// networksOf: CN-44, the networks of all groups together.
func (c Cluster) networksOf(s proposed.CIDRGroups) []string {
	var networks []string
	for _, g := range c.groupsOf(s) {
		networks = append(networks, texts(g.Spec.CIDRs)...)
	}
	return networks
}

// groupFaults: CN-44, names or a selector, and no group may be missing or have what is no network.
func (c Cluster) groupFaults(s proposed.CIDRGroups) []Reason {
	switch {
	case (len(s.Names) > 0) == (s.Selector != nil):
		return []Reason{InvalidPeer}
	case s.Selector != nil && !selectorIsValid(*s.Selector):
		return []Reason{InvalidSelector}
	}
	var faults []Reason
	if s.Selector != nil && len(c.groupsOf(s)) == 0 {
		faults = append(faults, UnknownCIDRGroup)
	}
	for _, name := range s.Names {
		if !slices.ContainsFunc(c.CIDRGroups, func(g *proposed.CIDRGroup) bool { return g.Name == name }) {
			faults = append(faults, UnknownCIDRGroup)
		}
	}
	if slices.ContainsFunc(c.networksOf(s), func(text string) bool { _, ok := parseCIDR(text); return !ok }) {
		faults = append(faults, InvalidCIDR)
	}
	return faults
}
