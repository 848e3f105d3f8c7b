package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"
)

// anyPeerMatches: NP-8, no peers means every peer. NP-9: one match is enough.
func (c Cluster) anyPeerMatches(policy *networkingv1.NetworkPolicy, peers []networkingv1.NetworkPolicyPeer, addr netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	return slices.ContainsFunc(peers, func(peer networkingv1.NetworkPolicyPeer) bool {
		return c.peerMatches(policy, peer, addr)
	})
}

// peerMatches: a peer is either an ipBlock or selectors. NP-11: an empty peer matches nothing.
// NP-16: so does a peer with both.
func (c Cluster) peerMatches(policy *networkingv1.NetworkPolicy, peer networkingv1.NetworkPolicyPeer, addr netip.Addr) bool {
	hasSelector := peer.PodSelector != nil || peer.NamespaceSelector != nil
	switch {
	case peer.IPBlock != nil && hasSelector:
		return false
	case peer.IPBlock != nil:
		return ipBlockMatches(peer.IPBlock, addr)
	case hasSelector:
		pod := c.podAt(addr)
		return pod != nil && c.podIsPeer(policy, peer, pod)
	}
	return false
}

// podIsPeer: NP-12 and NP-13. The namespaceSelector selects namespaces, by default the policy's
// own; the podSelector selects pods in them, by default all.
func (c Cluster) podIsPeer(policy *networkingv1.NetworkPolicy, peer networkingv1.NetworkPolicyPeer, pod *corev1.Pod) bool {
	inNamespace := pod.Namespace == policy.Namespace
	if peer.NamespaceSelector != nil {
		inNamespace = c.namespaceMatches(*peer.NamespaceSelector, pod.Namespace)
	}
	return inNamespace && (peer.PodSelector == nil || selects(*peer.PodSelector, pod.Labels))
}

// namespaceMatches: NP-15, only the empty selector matches an unknown namespace.
func (c Cluster) namespaceMatches(s metav1.LabelSelector, name string) bool {
	if isEmpty(s) {
		return true
	}
	labels, known := c.labelsOfNamespace(name)
	return known && selects(s, labels)
}

// ipBlockMatches: NP-17, whoever has the address. NP-18: in the block and in no exception. A block
// matches nothing if it or one of its exceptions is unreadable.
func ipBlockMatches(block *networkingv1.IPBlock, addr netip.Addr) bool {
	cidr, ok := parseCIDR(block.CIDR)
	if !ok || !cidr.Contains(addr.Unmap()) {
		return false
	}
	for _, text := range block.Except {
		except, ok := parseCIDR(text)
		if !ok || except.Contains(addr.Unmap()) {
			return false
		}
	}
	return true
}

// parseCIDR: NP-19, host bits are cleared and leading zeros are decimal. NP-20: an IPv4-mapped
// range is the IPv4 range, so families never mix. A range wider than all mapped addresses (shorter
// than /96) stays an IPv6 range.
func parseCIDR(text string) (netip.Prefix, bool) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(network.IP)
	bits, _ := network.Mask.Size()
	if addr.Is4In6() {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits).Masked(), ok
}
