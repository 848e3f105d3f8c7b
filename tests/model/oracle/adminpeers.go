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

// adminPeerMatches reports whether the other side of a packet is the peer.
func (c Cluster) adminPeerMatches(p adminPeer, q Query, dir networkingv1.PolicyType) bool {
	addr := q.peer(dir)
	switch {
	case c.notKnown(p):
		return false
	case p.all: // CN-45
		return true
	case p.nodes != nil:
		return c.nodeIsPeer(*p.nodes, q, addr)
	case p.networks != nil:
		return slices.ContainsFunc(p.networks, func(text string) bool { return networkMatches(text, addr) })
	case p.groups != nil:
		return slices.ContainsFunc(c.networksOf(*p.groups), func(text string) bool { return networkMatches(text, addr) })
	case p.domainNames != nil:
		return slices.ContainsFunc(p.domainNames, func(domain string) bool { return anyNameMatches(domain, c.namesThatCount(q, addr)) })
	}
	pod := c.podAt(addr)
	return pod != nil && c.inPodSet(p.podSet, pod)
}

// notKnown: CN-30, a peer has exactly one known field. CN-31, CN-42 to CN-45: a disabled
// field counts as unknown.
func (c Cluster) notKnown(p adminPeer) bool {
	return p.fields() != 1 || p.nodes != nil && !c.NodePeers || p.domainNames != nil && !c.DomainNames || p.npep127 && !c.IngressByAddress || p.groups != nil && !c.GroupPeers || p.all && !c.MatchAll || c.accountsAreOff(p.podSet)
}

// fields counts the fields that are set.
func (p adminPeer) fields() int {
	return p.podSet.fields() + howMany(p.nodes != nil, p.networks != nil, p.domainNames != nil, p.groups != nil, p.all)
}

func howMany(are ...bool) int {
	n := 0
	for _, is := range are {
		if is {
			n++
		}
	}
	return n
}

func (s podSet) fields() int {
	return howMany(s.namespaces != nil, s.pods != nil, s.accounts != nil)
}

// accountsAreOff: CN-43, without the gate.
func (c Cluster) accountsAreOff(s podSet) bool { return s.accounts != nil && !c.ServiceAccounts }

// inPodSet: CN-9 and CN-10, all pods of namespaces, or pods in namespaces. CN-43: or those of
// service accounts. An unreadable selector selects nothing.
func (c Cluster) inPodSet(s podSet, pod *corev1.Pod) bool {
	if s.namespaces != nil {
		return c.namespaceMatches(*s.namespaces, pod.Namespace)
	}
	if s.accounts != nil {
		return len(s.faults()) == 0 && c.namespaceMatches(s.accounts.namespaces, pod.Namespace) && slices.Contains(s.accounts.names, accountOf(pod))
	}
	return s.pods != nil && c.namespaceMatches(s.pods.namespaces, pod.Namespace) && selects(s.pods.pods, pod.Labels)
}

// accountOf: CN-43, the older field and the default as API servers fill them in.
func accountOf(pod *corev1.Pod) string {
	switch {
	case pod.Spec.ServiceAccountName != "":
		return pod.Spec.ServiceAccountName
	case pod.Spec.DeprecatedServiceAccount != "":
		return pod.Spec.DeprecatedServiceAccount
	}
	return "default"
}

// nodeIsPeer: CN-16, an IP address of a selected node. Packets to the evaluating node match that
// node by any of its addresses. NP-64: a pod of the evaluating node is not a node.
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

// nodeAddresses: CN-16, the IP addresses of the status, of any type. Host names do not count.
func nodeAddresses(node *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if addr, ok := parseAddr(a.Address); ok && !isSpecial(addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// networkMatches: CN-15, whoever has the address. An unreadable network matches nothing.
func networkMatches(text string, addr netip.Addr) bool {
	network, ok := parseCIDR(text)
	return ok && network.Contains(addr.Unmap())
}

// anyNameMatches: CN-17, the exact name, or with "*." at least one more label. Case and a trailing
// dot do not matter.
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

// namesThatCount: CN-36, the learned names of an address that may match it. A translated address
// also counts as its IPv4 address.
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

// isOfCluster reports whether an address belongs to a pod or a node, or may belong to a pod that is
// not known yet.
func (c Cluster) isOfCluster(addr netip.Addr) bool {
	return len(c.occupants(addr)) > 0 || c.isNode(addr) || c.unknownLocal(c.node, addr) ||
		slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return len(c.rangesOf(n.Name, addr)) > 0 })
}

// neverNamed: CN-36, special addresses, and metadata services at addresses that are not link-local.
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

// translated: CN-36, the IPv4 address embedded in an IPv6 address after the first 12 bytes, or with
// 6to4 after the first two.
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

// domainName has an optional wildcard and labels. Servers require at least two labels; a single one
// is read as well.
var domainName = regexp.MustCompile(`^(\*\.)?([^.*]{1,63}\.)*[^.*]{1,63}\.?$`)

func isDomainName(text string) bool {
	bare := strings.TrimSuffix(strings.TrimPrefix(text, "*."), ".")
	return domainName.MatchString(text) && len(bare) <= 253
}

// arePods reports whether peers are pods, not addresses or names.
func (p adminPeer) arePods() bool { return p.podSet.fields() > 0 }

// namesPorts reports whether a named port may apply to packets from or to the peer.
func (p adminPeer) namesPorts() bool { return p.arePods() || p.npep127 || p.all && p.ofIngress }

// mayDenyHosts: CN-16, a rule that denies by address, whoever has it.
func (c Cluster) mayDenyHosts(r adminRule) bool {
	return r.action == deny && (r.everyone || slices.ContainsFunc(r.peers, func(p adminPeer) bool {
		return !p.arePods() && (p.groups == nil || len(c.networksOf(*p.groups)) > 0)
	}))
}

// allowsNames: CN-17, an Allow that names domains.
func (c Cluster) allowsNames(r adminRule) bool {
	return slices.ContainsFunc(r.peers, func(p adminPeer) bool {
		return !c.notKnown(p) && slices.ContainsFunc(p.domainNames, isDomainName)
	})
}
