package lint

import (
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Inclusion of selectors, blocks, ports and rules, for all pods that can exist.
// A positive answer is exact. Where it would need several selectors together, or the
// addresses of pods, the answer is no.

// values is the set of values that a selector allows for one label.
type values struct {
	absent   bool // the label may be missing
	unlisted bool // allows all values that are not in listed; otherwise only those in listed
	listed   map[string]bool
}

var anyValue = values{absent: true, unlisted: true}

func (v values) has(value string) bool { return v.listed[value] != v.unlisted }

func (v values) empty() bool { return !v.absent && !v.unlisted && len(v.listed) == 0 }

// intersect returns the values that both allow.
func (v values) intersect(o values) values {
	common := values{absent: v.absent && o.absent, unlisted: v.unlisted && o.unlisted, listed: map[string]bool{}}
	for _, side := range []values{v, o} {
		for value := range side.listed {
			if (v.has(value) && o.has(value)) != common.unlisted {
				common.listed[value] = true
			}
		}
	}
	return common
}

// within reports whether o allows all that v allows.
func (v values) within(o values) bool {
	if v.absent && !o.absent || v.unlisted && !o.unlisted {
		return false
	}
	for _, side := range []values{v, o} {
		for value := range side.listed {
			if v.has(value) && !o.has(value) {
				return false
			}
		}
	}
	return true
}

// allowed returns the allowed values of each label that s names.
func allowed(s labels.Selector) map[string]values {
	all := map[string]values{}
	requirements, selectable := s.Requirements()
	if !selectable {
		all[""] = values{}
	}
	for i := range requirements {
		r := &requirements[i]
		v, known := all[r.Key()]
		if !known {
			v = anyValue
		}
		all[r.Key()] = v.intersect(allowedBy(r))
	}
	return all
}

func allowedBy(r *labels.Requirement) values {
	v := values{listed: map[string]bool{}}
	for _, value := range r.ValuesUnsorted() {
		v.listed[value] = true
	}
	switch r.Operator() {
	case selection.NotIn, selection.NotEquals:
		v.absent, v.unlisted = true, true
	case selection.Exists:
		v.unlisted = true
	case selection.DoesNotExist:
		v.absent = true
	}
	return v
}

// includes reports whether s selects everything that o selects.
func includes(s, o labels.Selector) bool { return includesAll(allowed(s), allowed(o)) }

// includesAll is includes on the results of allowed.
func includesAll(s, inner map[string]values) bool {
	for key, outer := range s {
		v, known := inner[key]
		if !known {
			v = anyValue
		}
		if !v.within(outer) {
			return false
		}
	}
	return true
}

// podsInclude reports whether s selects all pods that o selects. Both are of NetworkPolicies.
func (c *cluster) podsInclude(s, o *policy.PodSelector) bool {
	if !includes(s.Pods, o.Pods) {
		return false
	}
	switch {
	case s.Namespace != "":
		return s.Namespace == o.Namespace
	case o.Namespace == "":
		return includes(s.Namespaces, o.Namespaces)
	}
	ns := c.namespaces[o.Namespace]
	return s.Namespaces.Empty() || ns != nil && s.Namespaces.Matches(labels.Set(ns.Labels))
}

// addressesOf returns the addresses of blocks without their exceptions.
func addressesOf(blocks ...policy.Block) *netipx.IPSet {
	var all netipx.IPSetBuilder
	for _, b := range blocks {
		var one netipx.IPSetBuilder
		one.AddPrefix(b.Prefix)
		for _, except := range b.Except {
			one.RemovePrefix(except)
		}
		all.AddSet(built(&one))
	}
	return built(&all)
}

// built returns the set of a builder. Its errors are about blocks that are none, which no policy has.
func built(b *netipx.IPSetBuilder) *netipx.IPSet {
	set, _ := b.IPSet()
	return set
}

// includesAddresses reports whether each address of inner is in outer.
func includesAddresses(outer, inner *netipx.IPSet) bool {
	return !slices.ContainsFunc(inner.Ranges(), func(r netipx.IPRange) bool { return !outer.ContainsRange(r) })
}

// readable reports whether the item can match anything.
func readable(p policy.Port) bool { return p.Name != "" || p.First <= p.Last }

// numbersOf returns the numbers that ports match. Those of names are not known: names says whether
// they are all numbers of the protocol, or none.
func numbersOf(names bool, ports ...policy.Port) reachability.PortSet {
	var ranges []reachability.PortRange
	for _, p := range ports {
		switch {
		case p.Name == "" && readable(p):
			ranges = append(ranges, reachability.PortRange{Proto: p.Proto, First: max(1, p.First), Last: max(1, p.Last)})
		case p.Name != "" && names:
			for _, whole := range reachability.AllPorts().Ranges() {
				if whole.Proto.HasPorts() && (p.Proto == whole.Proto || p.Proto == packet.Unknown) {
					ranges = append(ranges, whole)
				}
			}
		}
	}
	return reachability.NewPortSet(ranges...)
}

// portsInclude reports whether ports match everything that p matches.
func portsInclude(ports []policy.Port, p policy.Port) bool {
	return slices.ContainsFunc(ports, func(o policy.Port) bool {
		return p.Name != "" && o.Name == p.Name && (o.Proto == p.Proto || o.Proto == packet.Unknown)
	}) || numbersOf(true, p).Without(numbersOf(false, ports...)).Empty()
}

// covered reports whether rules together match every packet that r matches. A rule that
// matches nothing is not covered: other rules of this package report what cannot be read.
func (c *cluster) covered(r *policy.Rule, rules []*policy.Rule) bool {
	if r.AnyPeer {
		return portsCovered(r, keep(rules, func(o *policy.Rule) bool { return o.AnyPeer }))
	}
	matches := false
	for i := range r.Peers {
		peer := &r.Peers[i]
		if isNothing(peer) {
			continue
		}
		matches = true
		if !portsCovered(r, keep(rules, func(o *policy.Rule) bool { return c.peerIncluded(o, peer) })) {
			return false
		}
	}
	return matches
}

func portsCovered(r *policy.Rule, rules []*policy.Rule) bool {
	if slices.ContainsFunc(rules, func(o *policy.Rule) bool { return o.AnyPort }) {
		return true
	}
	if r.AnyPort {
		return false
	}
	var ports []policy.Port
	for _, o := range rules {
		ports = append(ports, o.Ports...)
	}
	matches := false
	for _, p := range r.Ports {
		if !readable(p) {
			continue
		}
		matches = true
		if !portsInclude(ports, p) {
			return false
		}
	}
	return matches
}

// peerIncluded reports whether the peers of r, a rule of a NetworkPolicy, include p.
func (c *cluster) peerIncluded(r *policy.Rule, p *policy.Peer) bool {
	if r.AnyPeer {
		return true
	}
	if p.Pods != nil {
		return slices.ContainsFunc(r.Peers, func(o policy.Peer) bool { return o.Pods != nil && c.podsInclude(o.Pods, p.Pods) })
	}
	var blocks []policy.Block
	for _, o := range r.Peers {
		blocks = append(blocks, o.Blocks...)
	}
	return includesAddresses(addressesOf(blocks...), addressesOf(p.Blocks...))
}

// isNothing reports whether the peer could not be read.
func isNothing(p *policy.Peer) bool {
	return p.Pods == nil && p.Nodes == nil && len(p.Domains) == 0 && len(p.Blocks) == 0
}

// keep returns the rules that satisfy f.
func keep(rules []*policy.Rule, f func(*policy.Rule) bool) []*policy.Rule {
	var kept []*policy.Rule
	for _, r := range rules {
		if f(r) {
			kept = append(kept, r)
		}
	}
	return kept
}
