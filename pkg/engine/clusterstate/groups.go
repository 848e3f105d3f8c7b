package clusterstate

import (
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// setGroup sets a CIDRGroup. Policies that refer to groups are compiled again with the next
// snapshot, so that a list of groups costs one compile.
func (c *Cluster) setGroup(o *proposed.CIDRGroup) bool {
	now := compile.NewCIDRGroup(o)
	if old := c.groups[o.Name]; old != nil && old.Equal(now) {
		return false
	}
	c.groups[o.Name] = now
	c.groupsChanged = true
	return true
}

func (c *Cluster) deleteGroup(name string) bool {
	if c.groups[name] == nil {
		return false
	}
	delete(c.groups, name)
	c.groupsChanged = true
	return true
}

// applyGroups compiles the policies that refer to groups again. replacePolicy ignores those whose
// groups have not changed.
func (c *Cluster) applyGroups() {
	c.groupsChanged = false
	var refer []*compile.Policy
	for _, p := range c.policies {
		if p.RefersToCIDRGroups() {
			refer = append(refer, p.Policy)
		}
	}
	for _, p := range refer {
		c.setPolicy(p.WithCIDRGroups(c.groups))
	}
}

func (c *Cluster) groupNames(yield func(namespace, name string) bool) {
	for name := range c.groups {
		if !yield("", name) {
			return
		}
	}
}
