package oracle

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// adminPeerMatches asks whether the other side of a packet is the peer.
func (c Cluster) adminPeerMatches(p adminPeer, q Query, dir networkingv1.PolicyType) bool {
	addr := q.peer(dir)
	switch {
	case c.notKnown(p):
		return false
	case p.nodes != nil:
		return c.nodeIsPeer(*p.nodes, q, addr)
	case p.networks != nil:
		return slices.ContainsFunc(p.networks, func(text string) bool { return networkMatches(text, addr) })
	case p.domainNames != nil:
		return slices.ContainsFunc(p.domainNames, func(domain string) bool { return anyNameMatches(domain, c.namesThatCount(q, addr)) })
	}
	pod := c.podAt(addr)
	return pod != nil && c.inPodSet(p.podSet, pod)
}

// notKnown: CN-30, a peer has exactly one field that is known. CN-31: one that is
// known and switched off is as good as not known.
func (c Cluster) notKnown(p adminPeer) bool {
	return p.fields() != 1 || p.nodes != nil && !c.NodePeers || p.domainNames != nil && !c.DomainNames
}

// fields counts those that are set.
func (p adminPeer) fields() int {
	n := p.podSet.fields()
	for _, set := range []bool{p.nodes != nil, p.networks != nil, p.domainNames != nil} {
		if set {
			n++
		}
	}
	return n
}

func (s podSet) fields() int {
	switch {
	case s.namespaces != nil && s.pods != nil:
		return 2
	case s.namespaces != nil || s.pods != nil:
		return 1
	}
	return 0
}

// inPodSet: CN-9 and CN-10, all pods of namespaces, or pods in namespaces. A
// selector that cannot be read selects nothing.
func (c Cluster) inPodSet(s podSet, pod *corev1.Pod) bool {
	if s.namespaces != nil {
		return c.namespaceMatches(*s.namespaces, pod.Namespace)
	}
	return s.pods != nil && c.namespaceMatches(s.pods.namespaces, pod.Namespace) && selects(s.pods.pods, pod.Labels)
}

// nodeIsPeer: CN-16, an IP among the addresses of a node that is selected. What the own
// node gets is for the own node, whichever of its addresses it is for. NP-64: a pod of the
// evaluating node is no node.
func (c Cluster) nodeIsPeer(s metav1.LabelSelector, q Query, addr netip.Addr) bool {
	isOwn := func(node *corev1.Node) bool { return node.Name == c.node }
	if own := slices.IndexFunc(c.Nodes, isOwn); q.ToHost && own >= 0 {
		return selects(s, c.Nodes[own].Labels)
	}
	if pod := c.podAt(addr); pod != nil && c.isHere(pod) {
		return false
	}
	return slices.ContainsFunc(c.Nodes, func(node *corev1.Node) bool {
		return selects(s, node.Labels) && c.hasAddress(node, addr.Unmap())
	})
}

// nodeAddresses: CN-16, those of the status that are IPs, of whatever type. Names
// are none.
func nodeAddresses(node *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if addr, ok := parseAddr(a.Address); ok && !isSpecial(addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// networkMatches: CN-15, whatever the address belongs to. One that cannot be read
// matches nothing.
func networkMatches(text string, addr netip.Addr) bool {
	network, ok := parseCIDR(text)
	return ok && network.Contains(addr.Unmap())
}

// anyNameMatches: CN-17, a name as it is, or after "*." at least one more label.
// Case and a dot at the end make no difference.
func anyNameMatches(domain string, names []string) bool {
	if !isDomainName(domain) {
		return false
	}
	domain = strings.ToLower(strings.TrimSuffix(domain, "."))
	below, wildcard := strings.CutPrefix(domain, "*")
	return slices.ContainsFunc(names, func(name string) bool {
		if wildcard {
			return strings.HasSuffix(name, below)
		}
		return name == domain
	})
}

// namesThatCount: CN-36, of the names that a pod has learned for an address those that
// match it. Translated addresses count as what they are translated to, too.
func (c Cluster) namesThatCount(q Query, addr netip.Addr) []string {
	all := []netip.Addr{addr.Unmap()}
	if v4, ok := translated(addr.Unmap()); ok {
		all = append(all, v4)
	}
	switch {
	case slices.ContainsFunc(all, neverNamed):
		return nil
	case q.ToHost || slices.ContainsFunc(all, c.isOfCluster):
		return slices.DeleteFunc(slices.Clone(q.Names[addr]), func(name string) bool { return !strings.HasSuffix(name, ".svc.cluster.local") })
	}
	return q.Names[addr]
}

// isOfCluster reports whether an address is a pod's or a node's, or may be that of a pod
// not yet known.
func (c Cluster) isOfCluster(addr netip.Addr) bool {
	return c.podAt(addr) != nil || c.isNode(addr) || c.unknownLocal(c.node, addr) ||
		slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return len(c.rangesOf(n.Name, addr)) > 0 })
}

// neverNamed: CN-36, the addresses that are special, and those of metadata services that
// are not link-local.
func neverNamed(addr netip.Addr) bool {
	for _, cidr := range []string{
		"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::/128", "::1/128", "fe80::/10", "ff00::/8",
		"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128",
		"fd00:100::100:200/128", "fd00:a9fe:a9fe::1/128", "fd00:42::42/128",
	} {
		if netip.MustParsePrefix(cidr).Contains(addr) {
			return true
		}
	}
	return false
}

// translated: CN-36, the IPv4 address in an IPv6 one: behind the first 12 bytes, or of
// 6to4 behind the first two.
func translated(addr netip.Addr) (netip.Addr, bool) {
	if addr.Is4() {
		return addr, false
	}
	bytes := addr.As16()
	if bytes[0] == 0x20 && bytes[1] == 0x02 {
		return netip.AddrFrom4([4]byte(bytes[2:6])), true
	}
	v4 := netip.AddrFrom4([4]byte(bytes[12:]))
	switch netip.PrefixFrom(addr, 96).Masked().Addr().String() {
	case "64:ff9b::", "64:ff9b:1::", "::ffff:0:0:0", "::":
		return v4, true
	}
	return v4, false
}

// domainName is a wildcard, or none, and labels. Servers ask for two labels at
// least; one is read as well.
var domainName = regexp.MustCompile(`^(\*\.)?([^.*]{1,63}\.)*[^.*]{1,63}\.?$`)

func isDomainName(text string) bool {
	bare := strings.TrimSuffix(strings.TrimPrefix(text, "*."), ".")
	return domainName.MatchString(text) && len(bare) <= 253
}

// arePods reports whether peers are pods, not addresses or names.
func (p adminPeer) arePods() bool { return p.podSet.fields() > 0 }

// mayDenyHosts: CN-16, a rule that denies addresses, whoever is there.
func (r adminRule) mayDenyHosts() bool {
	return r.action == deny && (r.everyone || slices.ContainsFunc(r.peers, func(p adminPeer) bool { return !p.arePods() }))
}

// asksForNames: CN-17, an Allow that names domains.
func (c Cluster) asksForNames(r adminRule) bool {
	return slices.ContainsFunc(r.peers, func(p adminPeer) bool {
		return !c.notKnown(p) && slices.ContainsFunc(p.domainNames, isDomainName)
	})
}
