package clusterstate

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// setNode sets a node. Every node matters: for its pod ranges, and as a peer for its labels and
// addresses.
func (c *Cluster) setNode(o *corev1.Node) bool {
	now := compile.NewNode(o)
	if old := c.nodes[o.Name]; old != nil && old.Equal(now) {
		return false
	}
	c.replaceHome(c.nodes[o.Name], now)
	c.nodes[o.Name] = now
	c.nodesChanged()
	return true
}

func (c *Cluster) deleteNode(name string) bool {
	if c.nodes[name] == nil {
		return false
	}
	c.replaceHome(c.nodes[name], nil)
	delete(c.nodes, name)
	c.nodesChanged()
	return true
}

// replaceHome replaces a node as the home of addresses. With AllNodes there are no homes: only the
// API says which pod has an address.
func (c *Cluster) replaceHome(old, now *compile.Node) {
	if c.cfg.ownNode() != "" {
		c.addresses.homes.replace(old, now)
	}
}

// nodesChanged drops everything that is derived from nodes.
func (c *Cluster) nodesChanged() {
	c.derived, c.podRanges, c.hosts, c.own = nil, nil, nil, nil
}

// rangesOf returns the pod ranges of the nodes for which include returns true.
func (c *Cluster) rangesOf(include func(node string) bool) []netip.Prefix {
	var ranges []netip.Prefix
	for _, n := range c.nodes {
		if include(n.Name) {
			ranges = append(ranges, n.PodRanges...)
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges)
}

// allPodRanges returns the addresses that pods of any node may have.
func (c *Cluster) allPodRanges() *policy.PodRanges {
	if c.podRanges == nil {
		var nodes []netip.Addr
		for _, n := range c.nodes {
			nodes = append(nodes, slices.DeleteFunc(slices.Clone(n.Addrs), func(a netip.Addr) bool { return c.addresses.homes.isForeign(n.Name, a) })...)
		}
		c.podRanges = policy.NewPodRanges(c.rangesOf(func(string) bool { return true }), nodes)
	}
	return c.podRanges
}

// nodesAt returns the nodes behind each address of a node: those whose status has it, unless a pod of
// another node is at home there, or a node with a range that has it says so, too (NP-64).
func (c *Cluster) nodesAt() map[netip.Addr][]string {
	at := make(map[netip.Addr][]string, len(c.nodes))
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		for _, addr := range c.nodes[name].Addrs {
			if p := c.podAt(addr); c.addresses.homes.mayBe(name, addr) && (p == nil || p.Node == name || !c.addresses.homes.isHome(p.Node, addr)) {
				at[addr] = append(at[addr], name)
			}
		}
	}
	return at
}

// allHosts returns the nodes behind each address of a node. Cache entries refer to these pointers,
// so they stay the same until a node changes.
func (c *Cluster) allHosts() map[netip.Addr]*policy.Host {
	if c.hosts != nil {
		return c.hosts
	}
	c.hosted = c.nodesAt()
	c.hosts = make(map[netip.Addr]*policy.Host, len(c.hosted))
	for addr, names := range c.hosted {
		c.hosts[addr] = &policy.Host{}
		for _, name := range names {
			*c.hosts[addr] = append(*c.hosts[addr], c.nodes[name].Labels)
		}
	}
	return c.hosts
}

// checkHosts drops the nodes behind addresses if pods at home have changed them.
func (c *Cluster) checkHosts() {
	if c.addresses.rehosted && c.hosts != nil && !maps.EqualFunc(c.hosted, c.nodesAt(), slices.Equal) {
		c.derived, c.hosts = nil, nil
	}
	c.addresses.rehosted = false
}

// ownHost returns the enforcing node, nil if it is not known. Cache entries refer to this pointer,
// too.
func (c *Cluster) ownHost() *policy.Host {
	if n := c.nodes[c.cfg.ownNode()]; n != nil && c.own == nil {
		c.own = &policy.Host{n.Labels}
	}
	return c.own
}

func (c *Cluster) nodeNames(yield func(namespace, name string) bool) {
	for name := range c.nodes {
		if !yield("", name) {
			return
		}
	}
}
