package compile

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Node is the part of a node that policies need. It is immutable.
type Node struct {
	Name   string
	Labels labels.Set
	// PodRanges are the ranges of its pods' addresses according to the Node object. Some network
	// plugins allocate from elsewhere; then they are missing or match nothing.
	PodRanges []netip.Prefix
	// Addrs are the node's own addresses (CN-16).
	Addrs []netip.Addr
}

// NewNode reads a node. It shares n's labels.
func NewNode(n *corev1.Node) *Node {
	return &Node{Name: n.Name, Labels: n.Labels, PodRanges: podRanges(n), Addrs: nodeAddresses(n)}
}

// Equal reports whether two readings of a node are the same.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && maps.Equal(n.Labels, o.Labels) &&
		slices.Equal(n.PodRanges, o.PodRanges) && slices.Equal(n.Addrs, o.Addrs)
}

func podRanges(n *corev1.Node) []netip.Prefix {
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	var ranges []netip.Prefix
	for _, cidr := range cidrs {
		if p, err := parsePrefix(cidr); err == nil {
			ranges = append(ranges, p)
		}
	}
	return ranges
}

// nodeAddresses returns the IP addresses in the node's status, which also contains host names.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, ok := parseAddr(a.Address); ok && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
