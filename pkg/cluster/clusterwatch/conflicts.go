package clusterwatch

import (
	"context"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// conflictLogRate is how many address conflicts are logged a second, and conflictLogBurst how
// many at once.
const conflictLogRate, conflictLogBurst = 1, 20

// conflictMessages say what the agent does about a conflict.
var conflictMessages = map[clusterstate.ConflictKind]string{
	clusterstate.LocalPod:    "Pod of this node shares an address with another pod, which does not get it here",
	clusterstate.OtherPod:    "Pods of two other nodes share an address, and what is denied to one is denied to both here",
	clusterstate.PodRange:    "Status of a pod has an address of a pod that is in the pod range of its node, and does not get it here",
	clusterstate.OwnRange:    "Status of a pod of another node has an address in the pod range of this node, and gets it only if a route leads there",
	clusterstate.NodeAddress: "Status of a pod has the address of another node, and gets no right by it here",
	clusterstate.NodeStatus:  "Status of a Node has an address that is a pod's or in the pod range of another node",
}

// reportConflicts counts address conflicts, and logs new ones.
func (c *Cache) reportConflicts(ctx context.Context) {
	c.mu.Lock()
	now := c.view.Conflicts()
	c.mu.Unlock()
	c.metrics.setConflicts(now)
	known := make(map[clusterstate.Conflict]bool, len(c.conflicts))
	for _, conflict := range c.conflicts {
		known[conflict] = true
	}
	for _, conflict := range now {
		if !known[conflict] && c.conflictLog.Allow() {
			klog.FromContext(ctx).Info(conflictMessages[conflict.Kind],
				"addr", conflict.Addr, "pod", conflict.Pod, "node", conflict.Node, "other", conflict.Other, "otherNode", conflict.OtherNode)
		}
	}
	c.conflicts = now
}

// AddressConflicts returns how many conflicts about addresses there are. A claim to an address in the
// range of this node, which none of its pods has, is none: network plugins need not use ranges.
func (c *Cache) AddressConflicts() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conflict := range c.view.Conflicts() {
		if conflict.Kind != clusterstate.OwnRange {
			n++
		}
	}
	return n
}

// Uncertain returns the pods of other nodes with an address that may be another's.
func (c *Cache) Uncertain() []*policy.Endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.Uncertain()
}

// reportOrder reports pods with sandboxes in a wrong order.
func (c *Cache) reportOrder() {
	c.mu.Lock()
	pods := c.view.Misordered()
	c.mu.Unlock()
	c.cfg.Misordered(pods)
}
