package policy

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// EvaluateClass decides about the packets of a class and reports whether the decision is lasting:
// whether it holds for every packet of the class from another machine or another pod until
// ChangedSince returns one of the class's addresses. It does not defer.
//
// A decision is not lasting if it depends on something not known yet, or if the policies of the
// source name domains.
func (s *Snapshot) EvaluateClass(c packet.Class) (d Decision, lasting bool) {
	q := Query{Packet: c.Packet(), AwaitSource: true}
	d = s.Evaluate(q)
	return d, s.Lasting(q, d)
}

// Lasting reports whether d, the decision of Evaluate about q, is lasting (see EvaluateClass). It
// is not lasting if enforcing audited policies would reverse it, because each such packet is
// counted.
func (s *Snapshot) Lasting(q Query, d Decision) bool {
	return s.lasting(q, d) && s.auditAgrees(q, d)
}

// auditAgrees reports whether enforcing audited policies would give the same action, and a lasting
// decision.
func (s *Snapshot) auditAgrees(q Query, d Decision) bool {
	if !s.audited(&q) {
		return true
	}
	would := s.audit.Evaluate(q)
	return would.Action == d.Action && s.audit.lasting(q, would)
}

func (s *Snapshot) lasting(q Query, d Decision) bool {
	if q.ToHost || d.Wait() != NoWait || s.dependsOnRoutes(&q.Packet) {
		return false
	}
	var src end
	s.find(&src, q.Packet.Src.Addr(), q.Sender, nil)
	if src.endpoint == nil {
		// A pod of another node may be created with this address.
		q.AwaitSource, q.anyNewcomer = true, true
		return s.Evaluate(q).Wait() == NoWait
	}
	return src.endpoint.Egress == nil || !src.endpoint.Egress.findNeeds().names
}

// ChangedSince returns the addresses whose lasting decisions may differ between old, a snapshot of
// the same cluster, and s. all means that every decision may differ.
func (s *Snapshot) ChangedSince(old *Snapshot) (addrs []netip.Addr, all bool) {
	a, b := &old.m, &s.m
	if a.Isolating != b.Isolating || !slices.Equal(a.Ranges, b.Ranges) || a.PodRanges != b.PodRanges || a.Own != b.Own || !maps.Equal(a.Hosts, b.Hosts) {
		return nil, true
	}
	if (a.Audit == nil) != (b.Audit == nil) || a.Audit != nil && *a.Audit != *b.Audit {
		return nil, true // packets whose verdict audited policies would reverse must be counted
	}
	return b.Endpoints.changedSince(&a.Endpoints), false
}

// changedSince returns the addresses whose endpoints differ between old and e. If e comes from
// edits of old, the cost is proportional to these edits.
func (e *Endpoints) changedSince(old *Endpoints) (addrs []netip.Addr) {
	if len(e.chunks) != len(old.chunks) {
		addrs = appendDiffering(addrs, e, old)
		return appendDiffering(addrs, old, e)
	}
	for i, c := range e.chunks {
		before := old.chunks[i]
		if c == before {
			continue
		}
		for n := range c {
			if !c[n].sharesMemory(before[n]) && !slices.Equal(c[n], before[n]) {
				addrs = c[n].appendDiffering(addrs, before[n])
				addrs = before[n].appendDiffering(addrs, c[n])
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// sharesMemory reports whether no edit has copied the shard between other and s.
func (s shard) sharesMemory(other shard) bool {
	return len(s) == len(other) && (len(s) == 0 || &s[0] == &other[0])
}

// appendDiffering appends the addresses of e that have a different endpoint in other.
func appendDiffering(addrs []netip.Addr, e, other *Endpoints) []netip.Addr {
	for addr, endpoint := range e.All() {
		if other.At(addr) != endpoint {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// appendDiffering appends the addresses of s that have a different endpoint in other.
func (s shard) appendDiffering(addrs []netip.Addr, other shard) []netip.Addr {
	for _, p := range s {
		if !slices.Contains(other, p) {
			addrs = append(addrs, p.addr)
		}
	}
	return addrs
}
