package reachability

import "maps"

// IfEnforced returns the cluster as if its audited policies were enforced, nil if none is
// audited.
func (c *Cluster) IfEnforced() *Cluster {
	audit := c.snapshot.Audit()
	if audit == nil {
		return nil
	}
	enforced := *c
	enforced.snapshot, enforced.toHost = audit, maps.Clone(c.toHost)
	for _, addr := range c.snapshot.AuditedToHost() {
		enforced.toHost[addr] = true
	}
	return &enforced
}

// explainAudited returns the explanation of the connection that a is about, as if audited
// policies were enforced; nil if none of them selects its pods.
func (c *Cluster) explainAudited(src, dst *Endpoint, port Port, family Family, a Answer) *Explanation {
	enforced := c.IfEnforced()
	if enforced == nil {
		return nil
	}
	if _, audited := c.snapshot.EvaluateAudited(a.Query); !audited {
		return nil
	}
	e := enforced.Explain(src, dst, port, family)
	return &e
}
