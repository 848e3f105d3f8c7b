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
// NP-51: the node's own knowledge takes precedence: the best sandbox with the address, then a pod
// of this node whose status shows it and that no sandbox contradicts. Only then may it be a pod of
// another node.
func (c Cluster) podAt(addr netip.Addr) *corev1.Pod {
	addr = addr.Unmap()
	if pod := c.sandboxedAt(addr); pod != nil {
		return pod
	}
	if pod := c.latest(func(pod *corev1.Pod) bool { return c.isHere(pod) && shows(pod, addr) && c.uncontradicted(pod, addr) }); pod != nil {
		return pod
	}
	pod := c.latest(func(pod *corev1.Pod) bool { return c.claimsElsewhere(pod, addr) })
	if pod == nil || c.node == "" {
		return pod
	}
	rival := c.latest(func(p *corev1.Pod) bool { return p.Spec.NodeName != pod.Spec.NodeName && c.claimsElsewhere(p, addr) })
	if rival != nil && rival.DeletionTimestamp == nil && pod.DeletionTimestamp == nil {
		return nil // this node cannot tell whose it is
	}
	return pod
}

// claimsElsewhere reports whether a pod of another node shows an address that it may have.
func (c Cluster) claimsElsewhere(pod *corev1.Pod, addr netip.Addr) bool {
	return !c.isHere(pod) && shows(pod, addr) && c.mayBeOn(pod.Spec.NodeName, addr)
}

// mayBeOn reports whether a pod of another node may have an address.
//
// NP-62: its status counts, except for addresses in the ranges of other nodes, addresses of other
// nodes themselves, and addresses outside of all ranges if the pods of all other nodes have
// addresses in the ranges. A pod without a node has no address.
func (c Cluster) mayBeOn(name string, addr netip.Addr) bool {
	if c.node == "" { // for tools, only the API says which pod it is
		return true
	}
	if owners := c.ownersOfRange(addr); len(owners) > 0 {
		return slices.Contains(owners, name)
	}
	var hosts []string
	for _, n := range c.Nodes {
		if slices.Contains(nodeAddresses(n), addr) {
			hosts = append(hosts, n.Name)
		}
	}
	if len(hosts) > 0 {
		return len(slices.Compact(hosts)) == 1 && hosts[0] == name
	}
	return name != "" && !c.mustUseRanges(name, addr.Is4())
}

// mustUseRanges reports whether the node has a range of the family and, of the other nodes, at
// least one uses its ranges of the family and none does not.
func (c Cluster) mustUseRanges(name string, is4 bool) bool {
	hasRange, someDo := false, false
	for _, n := range c.Nodes {
		inside, outside := c.useOfRanges(n, is4)
		switch {
		case n.Name == name:
			hasRange = slices.ContainsFunc(podRanges(n), func(r netip.Prefix) bool { return r.Addr().Is4() == is4 })
		case outside > inside:
			return false
		case inside > 0:
			someDo = true
		}
	}
	return hasRange && someDo
}

// ownersOfRange returns the nodes with a range that contains the address and is in use.
//
// NP-63: decided by the addresses of pods, separately for each family. The ranges of a node are not
// in use if its pods have more addresses outside than inside, and no ranges are in use if that
// holds for the majority of nodes. No other node shares the ranges of the evaluating node.
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

// useOfRanges counts the addresses of a node's pods inside and outside of its ranges.
func (c Cluster) useOfRanges(node *corev1.Node, is4 bool) (inside, outside int) {
	for _, pod := range c.Pods {
		if pod.Spec.NodeName != node.Name || !hasOwnNetwork(pod) {
			continue
		}
		addrs := append(addressesOf(pod), c.sandboxAddresses(pod)...)
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

// sandboxAddresses returns the addresses of a pod's sandbox that no newer sandbox has.
func (c Cluster) sandboxAddresses(pod *corev1.Pod) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(c.sandboxOf(pod)), func(a netip.Addr) bool { return c.sandboxedAt(a) != pod })
}

// latest returns the chosen pod that succeeds all other chosen ones, or nil.
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
func (c Cluster) sandboxOf(pod *corev1.Pod) []netip.Addr {
	if best := c.bestSandbox(pod); best >= 0 {
		return c.Sandboxes[best].Addrs
	}
	return nil
}

// bestSandbox returns the index of the sandbox of a pod, -1 if it has none.
//
// NP-60: of those with its name and UID the best one.
func (c Cluster) bestSandbox(pod *corev1.Pod) int {
	best := -1
	for i, s := range c.Sandboxes {
		if hasOwnNetwork(pod) && c.isHere(pod) && s.Namespace == pod.Namespace && s.Name == pod.Name && s.UID == pod.UID &&
			(best < 0 || s.standing(pod) < c.Sandboxes[best].standing(pod)) {
			best = i
		}
	}
	return best
}

// standing is lower for better sandboxes of a pod: 0 if routes prove one, 1 if the pod's status has its
// address and no other of the family, and 2 otherwise.
func (s Sandbox) standing(pod *corev1.Pod) int {
	if s.Proven {
		return 0
	}
	standing := 2
	for _, shown := range addressesOf(pod) {
		switch family := func(a netip.Addr) bool { return a.Is4() == shown.Is4() }; {
		case slices.Contains(s.Addrs, shown):
			standing = 1
		case slices.ContainsFunc(s.Addrs, family):
			return 2
		}
	}
	return standing
}

// sandboxedAt returns the pod with the best sandbox that has an address, or nil.
//
// NP-60: only the best sandbox of each existing pod counts, and of equals the newest.
func (c Cluster) sandboxedAt(addr netip.Addr) (owner *corev1.Pod) {
	best, lowest := -1, 3
	for _, pod := range c.Pods {
		at := c.bestSandbox(pod)
		if at < 0 || !slices.Contains(c.Sandboxes[at].Addrs, addr) {
			continue
		}
		if standing := c.Sandboxes[at].standing(pod); standing < lowest || standing == lowest && at < best {
			owner, best, lowest = pod, at, standing
		}
	}
	return owner
}

// uncontradicted reports whether no sandbox contradicts an address in the status of a pod: neither
// the pod's own, which may have a single family, nor that of another pod.
func (c Cluster) uncontradicted(pod *corev1.Pod, addr netip.Addr) bool {
	for _, made := range c.sandboxOf(pod) {
		if made.Is4() == addr.Is4() {
			return false
		}
	}
	return c.sandboxedAt(addr) == nil
}

// podAddresses returns every address that belongs or belonged to a pod, in order.
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

// hasOwnNetwork: NP-50, a pod that has ended has no network, although its status still shows
// addresses. NP-22 and NP-23: a host-network pod counts as its node and is neither subject nor
// peer.
func hasOwnNetwork(pod *corev1.Pod) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !ended && !pod.Spec.HostNetwork
}

// succeeds reports whether pod a rather than pod b owns an address that both claim.
//
// NP-50 and NP-51: a pod that is not being deleted wins, then the one created later. For pods of
// the same second the smaller UID, then the smaller namespace and name wins: arbitrary, but
// independent of the order of events.
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

// addressesOf: NP-52, all of status.podIPs, and podIP for objects that have only that.
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

// isSpecial: NP-52, addresses that no pod and no node can have.
func isSpecial(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// parseAddr: NP-19 and NP-20, leading zeros are decimal and an IPv4-mapped
// address is the IPv4 address.
func parseAddr(text string) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return addr.Unmap(), ok
}

// labelsOfNamespace: NP-14, the labels of the Namespace object without additions. The second result
// is false if the object is not known.
func (c Cluster) labelsOfNamespace(name string) (map[string]string, bool) {
	for _, ns := range c.Namespaces {
		if ns.Name == name {
			return ns.Labels, true
		}
	}
	return nil, false
}

// unknownLocal: NP-55. An address in the node's own pod ranges without a pod belongs to a pod that
// is not known yet. NP-51: so does an address that a pod of the node still shows but no longer has.
func (c Cluster) unknownLocal(node string, addr netip.Addr) bool {
	return c.podAt(addr) == nil && (len(c.rangesOf(node, addr)) > 0 ||
		c.latest(func(pod *corev1.Pod) bool { return c.isHere(pod) && shows(pod, addr.Unmap()) }) != nil)
}

// unknownPeer: CN-35, the other side is a pod that is not known yet: an address in the same range
// as the subject or, in egress, in a range of any node. An address in the status of a node belongs
// to the node.
func (c Cluster) unknownPeer(node string, q Query, dir networkingv1.PolicyType) bool {
	peer := q.peer(dir)
	if c.unknownInSameRange(node, q.subject(dir), peer) {
		return true
	}
	return dir == networkingv1.PolicyTypeEgress && c.podAt(peer) == nil && !c.isNode(peer) &&
		slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return len(c.rangesOf(n.Name, peer)) > 0 })
}

// isNode reports whether the status of some node shows the address, and it may be the node's own.
func (c Cluster) isNode(addr netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return c.hasAddress(n, addr.Unmap()) })
}

// hasAddress: NP-64, a node has the addresses in its status, except those in the ranges of other
// nodes.
func (c Cluster) hasAddress(node *corev1.Node, addr netip.Addr) bool {
	owners := c.ownersOfRange(addr)
	return slices.Contains(nodeAddresses(node), addr) && (len(owners) == 0 || slices.Contains(owners, node.Name))
}

// unknownInSameRange: NP-55, for a peer: it is unknown and in the same range as the pod.
func (c Cluster) unknownInSameRange(node string, pod, addr netip.Addr) bool {
	return c.podAt(addr) == nil && slices.ContainsFunc(c.rangesOf(node, addr), func(r netip.Prefix) bool {
		return r.Contains(pod.Unmap())
	})
}

// rangesOf returns the pod ranges of a node that contain addr.
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
