package reachability

import (
	"maps"
	"net/netip"
)

// IfEnforced returns the cluster with its audited policies enforced, or nil if no policy is
// audited.
func (c *Cluster) IfEnforced() *Cluster {
	audit := c.snapshot.Audit()
	if audit == nil {
		return nil
	}
	enforced := *c
	enforced.snapshot, enforced.enforced, enforced.toHost = audit, true, maps.Clone(c.toHost)
	for _, addr := range c.snapshot.AuditedToHost() {
		enforced.toHost[addr] = true
	}
	enforced.index()
	return &enforced
}

// explainAudited explains the connection of a as if audited policies were enforced. It
// returns nil if no audited policy selects the pods.
func (c *Cluster) explainAudited(src, dst *Endpoint, port Port, family Family, a Answer) *Explanation {
	enforced := c.IfEnforced()
	if enforced == nil {
		return nil
	}
	q := a.Query
	q.Packet.Src = netip.AddrPortFrom(src.knownAt(q.Packet.Src.Addr()), q.Packet.Src.Port())
	q.Packet.Dst = netip.AddrPortFrom(dst.knownAt(q.Packet.Dst.Addr()), q.Packet.Dst.Port())
	if _, audited := c.snapshot.EvaluateAudited(q); !audited {
		return nil
	}
	e := enforced.Explain(src, dst, port, family)
	return &e
}
