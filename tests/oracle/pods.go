package oracle

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	netutils "k8s.io/utils/net"
)

// podAt returns the pod that an address belongs to, or nil.
//
// NP-51: the node knows first. It has the newest sandbox with the address, or a pod of its
// own shows it and no sandbox says otherwise. Only then it may be a pod of another node.
func (c Cluster) podAt(addr netip.Addr) *corev1.Pod {
	addr = addr.Unmap()
	if pod := c.sandboxedAt(addr); pod != nil {
		return pod
	}
	if pod := c.latest(func(pod *corev1.Pod) bool { return c.isHere(pod) && shows(pod, addr) && c.believed(pod, addr) }); pod != nil {
		return pod
	}
	pod := c.latest(func(pod *corev1.Pod) bool { return c.claimsElsewhere(pod, addr) })
	if pod == nil || c.node == "" {
		return pod
	}
	rival := c.latest(func(p *corev1.Pod) bool { return p.Spec.NodeName != pod.Spec.NodeName && c.claimsElsewhere(p, addr) })
	if rival != nil && rival.DeletionTimestamp == nil && pod.DeletionTimestamp == nil {
		return nil // nothing known here says whose it is
	}
	return pod
}

// claimsElsewhere reports whether a pod of another node shows an address that it may have.
func (c Cluster) claimsElsewhere(pod *corev1.Pod, addr netip.Addr) bool {
	return !c.isHere(pod) && shows(pod, addr) && c.mayBeOn(pod.Spec.NodeName, addr)
}

// mayBeOn reports whether a pod of another node may have an address.
//
// NP-62: what its kubelet says counts, but for addresses in the ranges of other nodes, and for
// those that other nodes have themselves. A pod that no node runs has none.
func (c Cluster) mayBeOn(name string, addr netip.Addr) bool {
	if c.node == "" { // to tools the API alone says which pod it is
		return true
	}
	if owners := c.ownersOfRange(addr); len(owners) > 0 {
		return slices.Contains(owners, name)
	}
	return name != "" && !slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
		return n.Name != name && slices.Contains(nodeAddresses(n), addr)
	})
}

// ownersOfRange returns the nodes with a range that has the address and is in use.
//
// NP-63: by what pods show, of each family for itself. Neither the ranges of a node with more
// addresses outside of them than inside are in use, nor any if this holds for more nodes than
// the opposite. The ranges of the evaluating node are of no other one.
func (c Cluster) ownersOfRange(addr netip.Addr) []string {
	surplus, owners := 0, []string(nil)
	for _, n := range c.Nodes {
		inside, outside := c.useOfRanges(n, addr.Is4())
		switch {
		case inside+outside == 0:
		case outside > inside:
			surplus--
		default:
			surplus++
		}
		if outside <= inside && len(c.rangesOf(n.Name, addr)) > 0 {
			owners = append(owners, n.Name)
		}
	}
	switch {
	case surplus < 0 || c.node == "":
		return nil
	case slices.Contains(owners, c.node):
		return []string{c.node}
	}
	return owners
}

// useOfRanges counts the addresses of a node's pods that are in its ranges, and those that are
// not.
func (c Cluster) useOfRanges(node *corev1.Node, is4 bool) (inside, outside int) {
	for _, pod := range c.Pods {
		if pod.Spec.NodeName != node.Name || !hasOwnNetwork(pod) {
			continue
		}
		addrs := append(addressesOf(pod), c.held(pod)...)
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, addr := range slices.Compact(addrs) {
			switch {
			case addr.Is4() != is4:
			case len(c.rangesOf(node.Name, addr)) > 0:
				inside++
			default:
				outside++
			}
		}
	}
	return inside, outside
}

// held returns the addresses that the node has made for a pod and for none later.
func (c Cluster) held(pod *corev1.Pod) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(c.sandboxOf(pod)), func(a netip.Addr) bool { return c.sandboxedAt(a) != pod })
}

// latest returns the pod of those chosen that succeeds all others, or nil.
func (c Cluster) latest(chosen func(*corev1.Pod) bool) *corev1.Pod {
	var owner *corev1.Pod
	for _, pod := range c.Pods {
		if hasOwnNetwork(pod) && chosen(pod) && (owner == nil || succeeds(pod, owner)) {
			owner = pod
		}
	}
	return owner
}

// isHere reports whether a pod runs on the evaluating node.
func (c Cluster) isHere(pod *corev1.Pod) bool { return c.node != "" && pod.Spec.NodeName == c.node }

// shows reports whether the status of a pod has an address.
func shows(pod *corev1.Pod, addr netip.Addr) bool { return slices.Contains(addressesOf(pod), addr) }

// sandboxOf returns the addresses that the node has made for a pod.
//
// NP-60: those of the newest sandbox of its name and UID.
func (c Cluster) sandboxOf(pod *corev1.Pod) []netip.Addr {
	if !hasOwnNetwork(pod) || !c.isHere(pod) {
		return nil
	}
	for _, s := range c.Sandboxes {
		if s.Namespace == pod.Namespace && s.Name == pod.Name && s.UID == pod.UID {
			return s.Addrs
		}
	}
	return nil
}

// sandboxedAt returns the pod with the newest sandbox that has an address, or nil.
//
// NP-60: sandboxes count that are the newest ones of pods that there are.
func (c Cluster) sandboxedAt(addr netip.Addr) *corev1.Pod {
	for _, s := range c.Sandboxes {
		for _, pod := range c.Pods {
			if s.Namespace == pod.Namespace && s.Name == pod.Name && s.UID == pod.UID &&
				slices.Contains(s.Addrs, addr) && slices.Contains(c.sandboxOf(pod), addr) {
				return pod
			}
		}
	}
	return nil
}

// believed reports whether an address that the status of a pod shows is its own: neither its
// own sandbox, which may be of one family, nor that of another pod says otherwise.
func (c Cluster) believed(pod *corev1.Pod, addr netip.Addr) bool {
	for _, made := range c.sandboxOf(pod) {
		if made.Is4() == addr.Is4() {
			return false
		}
	}
	return c.sandboxedAt(addr) == nil
}

// podAddresses lists every address that belongs or belonged to a pod, ordered.
func (c Cluster) podAddresses() []netip.Addr {
	var all []netip.Addr
	for _, pod := range c.Pods {
		if hasOwnNetwork(pod) {
			all = append(all, addressesOf(pod)...)
			all = append(all, c.sandboxOf(pod)...)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// hasOwnNetwork: NP-50, a pod that has ended has no network, although its
// status still shows addresses. NP-22 and NP-23: to policy a host-network pod
// is its node, neither subject nor peer.
func hasOwnNetwork(pod *corev1.Pod) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !ended && !pod.Spec.HostNetwork
}

// succeeds reports whether pod a rather than pod b owns an address that both
// claim.
//
// NP-50 and NP-51: one that is being deleted gives way to one that is not; then
// the one created last wins. Two of the same second are distinguished by UID and
// then by namespace and name, the smaller one wins: arbitrary, but the same for
// every order of events.
func succeeds(a, b *corev1.Pod) bool {
	aStays, bStays := a.DeletionTimestamp == nil, b.DeletionTimestamp == nil
	if aStays != bStays {
		return aStays
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	if a.UID != b.UID {
		return a.UID < b.UID
	}
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) < 0
}

// addressesOf: NP-52, all of status.podIPs counts, and podIP for objects that
// have only that.
func addressesOf(pod *corev1.Pod) []netip.Addr {
	texts := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	var addrs []netip.Addr
	for _, text := range texts {
		if addr, ok := parseAddr(text); ok && !isSpecial(addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// isSpecial: NP-52, no pod and no node has such an address.
func isSpecial(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// parseAddr: NP-19 and NP-20, leading zeros are decimal and an IPv4-mapped
// address is the IPv4 address.
func parseAddr(text string) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return addr.Unmap(), ok
}

// labelsOfNamespace: NP-14, labels are those of the Namespace object and
// nothing is made up. The answer is false when the object is not known.
func (c Cluster) labelsOfNamespace(name string) (map[string]string, bool) {
	for _, ns := range c.Namespaces {
		if ns.Name == name {
			return ns.Labels, true
		}
	}
	return nil, false
}

// unknownLocal: NP-55. An address of the node's own pod ranges that is no
// pod's is that of a pod not yet known. NP-51: so is one that a pod of the node still shows
// and no longer has.
func (c Cluster) unknownLocal(node string, addr netip.Addr) bool {
	return c.podAt(addr) == nil && (len(c.rangesOf(node, addr)) > 0 ||
		c.latest(func(pod *corev1.Pod) bool { return c.isHere(pod) && shows(pod, addr.Unmap()) }) != nil)
}

// unknownPeer: CN-35, the other side is a pod not yet known: in one range with the
// subject, or for what is sent in a range of whatever node. An address in the
// status of a node is that of the node.
func (c Cluster) unknownPeer(node string, q Query, dir networkingv1.PolicyType) bool {
	peer := q.peer(dir)
	if c.unknownBeside(node, q.subject(dir), peer) {
		return true
	}
	return dir == networkingv1.PolicyTypeEgress && c.podAt(peer) == nil && !c.isNode(peer) &&
		slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return len(c.rangesOf(n.Name, peer)) > 0 })
}

// isNode reports whether the status of some node shows the address, which may be its own.
func (c Cluster) isNode(addr netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return c.hasAddress(n, addr.Unmap()) })
}

// hasAddress: NP-64, a node has what its status shows, but for addresses in the ranges of
// other nodes.
func (c Cluster) hasAddress(node *corev1.Node, addr netip.Addr) bool {
	owners := c.ownersOfRange(addr)
	return slices.Contains(nodeAddresses(node), addr) && (len(owners) == 0 || slices.Contains(owners, node.Name))
}

// unknownBeside: NP-55, for a peer: it is unknown and in one range with the pod.
func (c Cluster) unknownBeside(node string, pod, addr netip.Addr) bool {
	return c.podAt(addr) == nil && slices.ContainsFunc(c.rangesOf(node, addr), func(r netip.Prefix) bool {
		return r.Contains(pod.Unmap())
	})
}

// rangesOf returns the pod ranges of a node that have addr.
func (c Cluster) rangesOf(node string, addr netip.Addr) []netip.Prefix {
	var ranges []netip.Prefix
	for _, n := range c.Nodes {
		for _, r := range podRanges(n) {
			if n.Name == node && r.Contains(addr.Unmap()) {
				ranges = append(ranges, r)
			}
		}
	}
	return ranges
}

// podRanges returns the ranges from which a node gives addresses to its pods.
func podRanges(node *corev1.Node) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range append([]string{node.Spec.PodCIDR}, node.Spec.PodCIDRs...) {
		if r, ok := parseCIDR(text); ok {
			ranges = append(ranges, r)
		}
	}
	return ranges
}
