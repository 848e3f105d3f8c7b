package compile

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// facts is what policy needs of a node.
type facts struct {
	labels map[string]string
	cidrs  []string
	addrs  []netip.Addr
}

func nodeFacts(n *corev1.Node) facts { return facts{n.Labels, podCIDRs(n), nodeAddresses(n)} }

func podCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// nodeAddresses returns the addresses in the node's status that are IP
// addresses (CN-16); the others are host names.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, ok := parseAddr(a.Address); ok && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// rangesOf returns the ranges out of which the pods of some nodes get their
// addresses, as far as the Node objects tell. Some network plugins allocate
// from elsewhere; then it is empty or matches nothing.
func (c *Cluster) rangesOf(of func(node string) bool) []netip.Prefix {
	var ranges []netip.Prefix
	for _, n := range c.nodes {
		if !of(n.Name) {
			continue
		}
		for _, cidr := range podCIDRs(n) {
			if p, err := parsePrefix(cidr); err == nil {
				ranges = append(ranges, p)
			}
		}
	}
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(ranges)
}

// allPodRanges returns the addresses that pods of any node may have.
func (c *Cluster) allPodRanges() *policy.PodRanges {
	if c.podRanges == nil {
		var nodes []netip.Addr
		for _, n := range c.nodes {
			nodes = append(nodes, nodeAddresses(n)...)
		}
		c.podRanges = policy.NewPodRanges(c.rangesOf(func(string) bool { return true }), nodes)
	}
	return c.podRanges
}

// allHosts returns the nodes behind each address of a node. What is remembered of
// them is about these very values.
func (c *Cluster) allHosts() map[netip.Addr]*policy.Host {
	if c.hosts != nil {
		return c.hosts
	}
	hosts := make(map[netip.Addr]*policy.Host, len(c.nodes))
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		n := c.nodes[name]
		for _, addr := range nodeAddresses(n) {
			if hosts[addr] == nil {
				hosts[addr] = &policy.Host{}
			}
			*hosts[addr] = append(*hosts[addr], n.Labels)
		}
	}
	c.hosts = hosts
	return hosts
}
