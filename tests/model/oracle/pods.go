package oracle

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	netutils "k8s.io/utils/net"
)

// occupant is who may have an address: a pod, or no known pod.
type occupant struct {
	pod *corev1.Pod
	// here is set if pod is nil and a new pod of the evaluating node may have the address.
	here bool
	// noHost is set if no node has the address, whatever its status says.
	noHost bool
}

// podAt returns the pod that an address belongs to, or nil, also if that is not certain.
func (c Cluster) podAt(addr netip.Addr) *corev1.Pod {
	addr = addr.Unmap()
	if o, assumed := c.assumed[addr]; assumed {
		return o.pod
	}
	if all := c.occupants(addr); len(all) == 1 {
		return all[0].pod
	}
	return nil
}

// assuming returns c with an address that belongs to o.
func (c Cluster) assuming(addr netip.Addr, o occupant) Cluster {
	c.assumed = map[netip.Addr]occupant{addr.Unmap(): o}
	return c
}

// occupants returns everyone who may have an address, none if no pod and no doubtful node has it.
//
// NP-51: the node's own knowledge takes precedence: the best sandbox with the address, then a pod
// of this node whose status shows it and that no sandbox contradicts. Only then may it be a pod of
// another node, or if the node routes the address elsewhere.
func (c Cluster) occupants(addr netip.Addr) (all []occupant) {
	if pod := c.sandboxedAt(addr); pod != nil {
		return []occupant{{pod: pod}}
	}
	pods := c.claimants(addr)
	if pod := c.latest(func(pod *corev1.Pod) bool { return c.isHere(pod) && shows(pod, addr) && c.uncontradicted(pod, addr) }); pod != nil &&
		!(c.Elsewhere[addr] && len(pods) > 0) {
		return []occupant{{pod: pod}}
	}
	if c.node == "" { // for tools, only the API says which pod it is
		if pod := c.latest(func(pod *corev1.Pod) bool { return shows(pod, addr) }); pod != nil {
			all = append(all, occupant{pod: pod})
		}
		return all
	}
	atHome := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return c.isHome(p.Spec.NodeName, addr) })
	noPod := len(pods) == 0
	for _, pod := range pods {
		all = append(all, occupant{pod: pod})
		noPod = noPod || !atHome && slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
			return n.Name != pod.Spec.NodeName && slices.Contains(nodeAddresses(n), addr)
		})
	}
	return c.addDoubts(all, noPod, addr)
}

// addDoubts adds to the pods that may have an address whoever else may have it.
//
// NP-55: in a range of the evaluating node, a new pod. NP-64: no pod, if a node says that it has the
// address, and neither a pod nor a node, if it is in a range of another node.
func (c Cluster) addDoubts(all []occupant, noPod bool, addr netip.Addr) []occupant {
	noHost := noPod && c.isForeignHost(addr) && !(len(all) == 0 && c.shownHere(addr))
	isOwn := len(c.rangesOf(c.node, addr)) > 0
	if len(all) == 0 && !noHost {
		return nil
	}
	if noPod || isOwn {
		all = append(all, occupant{here: isOwn})
	}
	for i := range all { // NP-63: a pod that may have it is no node
		all[i].noHost = all[i].pod != nil && len(all) > 1
	}
	if noHost {
		for _, o := range slices.Clone(all) {
			o.noHost = true
			all = append(all, o)
		}
	}
	return all
}

// shownHere reports whether the status of a pod of this node has an address.
func (c Cluster) shownHere(addr netip.Addr) bool {
	return c.latest(func(pod *corev1.Pod) bool { return c.isHere(pod) && shows(pod, addr) }) != nil
}

// claimants returns the pods of other nodes that may have an address according to statuses, one of
// each node.
//
// NP-62: every status counts, unless a pod at home has the address: then those of its node and of
// nodes without a range. A pod without a node has no address.
func (c Cluster) claimants(addr netip.Addr) (pods []*corev1.Pod) {
	byNode := map[string]bool{}
	for _, pod := range c.Pods {
		byNode[pod.Spec.NodeName] = pod.Spec.NodeName != "" && pod.Spec.NodeName != c.node
	}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		pod := c.latest(func(p *corev1.Pod) bool { return p.Spec.NodeName == name && shows(p, addr) })
		if pod != nil && byNode[name] {
			pods = append(pods, pod)
		}
	}
	if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return c.isHome(p.Spec.NodeName, addr) }) {
		return pods
	}
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return !c.isHome(p.Spec.NodeName, addr) && c.hasRangeOfFamily(p.Spec.NodeName, addr)
	})
}

// isHome reports whether an address is in a range of a node. No other node shares the ranges of the
// evaluating node.
func (c Cluster) isHome(name string, addr netip.Addr) bool {
	return len(c.rangesOf(name, addr)) > 0 && (name == c.node || len(c.rangesOf(c.node, addr)) == 0)
}

func (c Cluster) hasRangeOfFamily(name string, addr netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
		return n.Name == name && slices.ContainsFunc(podRanges(n), func(r netip.Prefix) bool { return r.Addr().Is4() == addr.Is4() })
	})
}

// isForeign reports whether an address is in the range of some node, but not of this one.
func (c Cluster) isForeign(name string, addr netip.Addr) bool {
	return !c.isHome(name, addr) && slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return len(c.rangesOf(n.Name, addr)) > 0 })
}

// isForeignHost reports whether nodes have an address in their status, and it is foreign for each.
func (c Cluster) isForeignHost(addr netip.Addr) bool {
	hosts := slices.DeleteFunc(slices.Clone(c.Nodes), func(n *corev1.Node) bool { return !slices.Contains(nodeAddresses(n), addr) })
	return len(hosts) > 0 && !slices.ContainsFunc(hosts, func(n *corev1.Node) bool { return !c.isForeign(n.Name, addr) })
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
	return c.podAt(addr) == nil && (len(c.rangesOf(node, addr)) > 0 || len(c.occupants(addr.Unmap())) == 0 && c.shownHere(addr.Unmap()))
}

// unknownPeer: CN-35, the other side is a pod that is not known yet: an address in the same range
// as the subject or, in egress, in a range of any node. An address in the status of a node belongs
// to the node.
func (c Cluster) unknownPeer(node string, q Query, dir networkingv1.PolicyType) bool {
	peer := q.peer(dir)
	if c.unknownInSameRange(node, q.subject(dir), peer) || c.assumed[peer.Unmap()].here {
		return true
	}
	isNode := slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool {
		return slices.Contains(nodeAddresses(n), peer.Unmap()) && !c.isForeign(n.Name, peer.Unmap())
	})
	return dir == networkingv1.PolicyTypeEgress && c.podAt(peer) == nil && !isNode &&
		slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return len(c.rangesOf(n.Name, peer)) > 0 })
}

// isNode reports whether the status of some node shows the address, and it may be the node's own.
func (c Cluster) isNode(addr netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return c.hasAddress(n, addr.Unmap()) })
}

// hasAddress: NP-64, a node has the addresses in its status, except those of pods that are at home on
// another node. If an address is in the range of one node that says so, it is not that of others.
func (c Cluster) hasAddress(node *corev1.Node, addr netip.Addr) bool {
	if !slices.Contains(nodeAddresses(node), addr) || c.assumed[addr].noHost || c.isForeign(node.Name, addr) && !c.isForeignHost(addr) {
		return false
	}
	pod := c.podAt(addr)
	return pod == nil || c.isHere(pod) || pod.Spec.NodeName == node.Name || !c.isHome(pod.Spec.NodeName, addr)
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
