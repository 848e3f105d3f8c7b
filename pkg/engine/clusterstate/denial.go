package clusterstate

import (
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// deny sets what becomes of packets that policies of the pods of a namespace deny. It reports whether
// this changed.
func (c *Cluster) deny(name string, d compile.Denial) bool {
	ns := c.namespace(name)
	defer c.forget(name, ns)
	if ns.denial == d {
		return false
	}
	ns.denial = d
	for _, old := range ns.pods {
		now := *old
		now.Endpoint.Rejects = d == compile.Reject
		if audited := now.Endpoint.Audited; audited != nil {
			copied := *audited
			copied.Rejects = now.Endpoint.Rejects
			now.Endpoint.Audited = &copied
		}
		c.replacePod(old, &now)
		if c.local[keyOf(&now)] {
			c.localPods = nil
		}
	}
	return true
}
