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
		return c.nodeIsPeer(*p.nodes, addr)
	case p.networks != nil:
		return slices.ContainsFunc(p.networks, func(text string) bool { return networkMatches(text, addr) })
	case p.domainNames != nil:
		return slices.ContainsFunc(p.domainNames, func(domain string) bool { return anyNameMatches(domain, q.Names[addr]) })
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

// nodeIsPeer: CN-16, an IP among the addresses of a node that is selected. The own
// node is one like all others.
func (c Cluster) nodeIsPeer(s metav1.LabelSelector, addr netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(node *corev1.Node) bool {
		return selects(s, node.Labels) && slices.Contains(nodeAddresses(node), addr.Unmap())
	})
}

// nodeAddresses: CN-16, those of the status that are IPs, of whatever type. Names
// are none.
func nodeAddresses(node *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if addr, ok := parseAddr(a.Address); ok {
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
