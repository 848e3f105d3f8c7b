package policy

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// EvaluateClass decides about the packets of a class, and reports whether the decision is
// lasting: it is that of every packet of the class that another machine or another pod
// sends, until ChangedSince returns one of its addresses. It does not defer.
//
// Not lasting are decisions that depend on what is not known yet, and those of pods whose
// policies name domains.
func (s *Snapshot) EvaluateClass(c packet.Class) (d Decision, lasting bool) {
	q := Query{Packet: c.Packet(), AwaitSource: true}
	if d = s.Evaluate(q); d.Reason == UnknownSource {
		return d, false
	}
	return d, s.Lasting(q, d)
}

// Lasting reports whether d, the decision of Evaluate about q, is lasting as EvaluateClass
// has it. A decision is not if audited policies would turn it: each packet of such a class
// is counted.
func (s *Snapshot) Lasting(q Query, d Decision) bool {
	return s.lasting(q, d) && s.auditAgrees(q, d)
}

// auditAgrees reports whether the decision about q would be d, and lasting, if audited
// policies were enforced.
func (s *Snapshot) auditAgrees(q Query, d Decision) bool {
	if !s.audited(&q) {
		return true
	}
	would := s.audit.Evaluate(q)
	return would.Action == d.Action && s.audit.lasting(q, would)
}

func (s *Snapshot) lasting(q Query, d Decision) bool {
	switch d.Reason {
	case UnknownPod, UnknownSource, NotEvaluated:
		return false
	}
	var src end
	s.find(&src, q.Packet.Src.Addr())
	switch {
	case q.ToHost:
		return false
	case src.endpoint == nil:
		// A pod of another node that does not exist yet may be next at this address.
		q.AwaitSource, q.anyNewcomer = true, true
		reason := s.Evaluate(q).Reason // UnknownPod hides UnknownSource
		return reason != UnknownPod && reason != UnknownSource
	}
	return src.endpoint.Egress == nil || !src.endpoint.Egress.read().names
}

// ChangedSince returns the addresses whose lasting decisions may be others in s than in
// old, a snapshot of the same cluster. all means that any may.
func (s *Snapshot) ChangedSince(old *Snapshot) (addrs []netip.Addr, all bool) {
	a, b := &old.m, &s.m
	if a.Isolating != b.Isolating || !slices.Equal(a.Ranges, b.Ranges) || a.PodRanges != b.PodRanges || a.Own != b.Own || !maps.Equal(a.Hosts, b.Hosts) {
		return nil, true
	}
	if (a.Audit == nil) != (b.Audit == nil) || a.Audit != nil && *a.Audit != *b.Audit {
		return nil, true // what audited policies would turn must be counted
	}
	return b.Endpoints.changedSince(&a.Endpoints), false
}

// changedSince returns the addresses that have another endpoint in e than in old, in no
// order. Endpoints that were made by editing old are compared in the time that the
// edits took.
func (e *Endpoints) changedSince(old *Endpoints) (addrs []netip.Addr) {
	if len(e.chunks) != len(old.chunks) {
		addrs = missing(addrs, e, old)
		return missing(addrs, old, e)
	}
	for i, c := range e.chunks {
		before := old.chunks[i]
		if c == before {
			continue
		}
		for n := range c {
			if !c[n].is(before[n]) && !slices.Equal(c[n], before[n]) {
				addrs = c[n].missing(addrs, before[n])
				addrs = before[n].missing(addrs, c[n])
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// is reports whether s and other are one shard that no edit has copied in between.
func (s shard) is(other shard) bool {
	return len(s) == len(other) && (len(s) == 0 || &s[0] == &other[0])
}

// missing appends the addresses of e that have another endpoint in other.
func missing(addrs []netip.Addr, e, other *Endpoints) []netip.Addr {
	for addr, endpoint := range e.All() {
		if other.At(addr) != endpoint {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// missing appends the addresses of s that have another endpoint in other.
func (s shard) missing(addrs []netip.Addr, other shard) []netip.Addr {
	for _, p := range s {
		if !slices.Contains(other, p) {
			addrs = append(addrs, p.addr)
		}
	}
	return addrs
}
