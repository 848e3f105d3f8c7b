package lint

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	dnsPort          = 53
	openShiftDNSPort = 5353
)

func isDNS(port uint16) bool { return port == dnsPort }

// dnsLabels are the labels of DNS pods in common clusters: Kubernetes' own manifests, the
// Helm chart of CoreDNS, and OpenShift.
var dnsLabels = []labels.Set{
	{"k8s-app": "kube-dns"},
	{"k8s-app": "coredns"},
	{"app.kubernetes.io/name": "coredns"},
	{"dns.operator.openshift.io/daemonset-dns": "default"},
}

// isDNSServer reports whether the pod answers the cluster's DNS queries.
func (c *cluster) isDNSServer(p *pod) bool {
	return slices.ContainsFunc(dnsLabels, func(l labels.Set) bool { return labels.SelectorFromSet(l).Matches(p.endpoint.Labels) })
}

// dnsServers returns the cluster's DNS pods that policies apply to.
func (c *cluster) dnsServers() []*pod {
	return slices.DeleteFunc(slices.Clone(c.pods), func(p *pod) bool { return p.host || !c.isDNSServer(p) })
}

// dnsPortOf returns the port on which a DNS pod receives queries: the target port of its
// Service's port 53, or 53 without a Service.
func (c *cluster) dnsPortOf(server *pod, proto packet.Proto) uint16 {
	for _, s := range c.servicesOf(server) {
		for _, sp := range s.Spec.Ports {
			if number, ok := targetPort(sp, server); ok && sp.Port == dnsPort && reachability.ProtocolOf(sp.Protocol) == proto {
				return number
			}
		}
	}
	return dnsPort
}

// dns finds pods that may connect to something but not to DNS. Each rule about DNS calls
// it, and it adds only the findings of that rule. Pods that may not connect at all need no
// names.
func dns(c *cluster) {
	servers := c.dnsServers()
	affected, unsure := map[*compiled][]*pod{}, map[*compiled][]*pod{}
	for _, p := range c.pods {
		if p.host || c.isDNSServer(p) || !usesClusterDNS(p.object) {
			continue
		}
		isolating := c.isolating(p, policy.Egress)
		i := slices.IndexFunc(isolating, func(o *compiled) bool { return slices.ContainsFunc(o.Rules(policy.Egress), needsNames) })
		if i < 0 {
			continue
		}
		switch problem := c.dnsProblem(p, isolating, servers, everywhere); {
		case problem == c.rule.ID:
			affected[isolating[i]] = append(affected[isolating[i]], p)
		case c.rule.ID == "no-dns" && c.dnsProblem(p, isolating, servers, somewhere) == c.rule.ID:
			unsure[isolating[i]] = append(unsure[isolating[i]], p)
		}
	}
	for p, pods := range unsure {
		c.find(p, "spec.egress", "", "egress of %s is restricted, and whether it allows DNS depends on the addresses of the DNS pods, which are not known", names(pods)).Severity = Info
	}
	for p, pods := range affected {
		switch c.rule.ID {
		case "no-dns":
			c.find(p, "spec.egress", "", "egress of %s is restricted, and nothing allows DNS", names(pods))
		case "dns-without-tcp":
			c.find(p, "spec.egress", "", "%s may use DNS by UDP and not by TCP", names(pods))
		default:
			c.find(p, "spec.egress", "", "DNS of %s is allowed on port 53; the DNS pods listen on %d", names(pods), c.dnsPortOf(servers[0], packet.UDP)).
				Fix = "Allow the port of the DNS pods, by UDP and TCP."
		}
	}
}

// usesClusterDNS reports whether the pod uses the cluster's DNS.
func usesClusterDNS(p *corev1.Pod) bool {
	return p.Spec.DNSPolicy == "" || p.Spec.DNSPolicy == corev1.DNSClusterFirst || p.Spec.DNSPolicy == corev1.DNSClusterFirstWithHostNet
}

// needsNames reports whether a rule allows a peer that clients find by name: anything but
// single addresses.
func needsNames(r policy.Rule) bool {
	return r.AnyPeer || slices.ContainsFunc(r.Peers, func(p policy.Peer) bool {
		return p.Pods != nil || slices.ContainsFunc(p.Blocks, func(b policy.Block) bool { return !b.Prefix.IsSingleIP() })
	})
}

// isolating returns the NetworkPolicies that isolate the pod in direction d.
func (c *cluster) isolating(p *pod, d policy.Direction) []*compiled {
	var found []*compiled
	for _, o := range c.maySelect(p.object.Namespace, maps.All(p.object.Labels)) {
		if o.isolates(d) && o.Subject.Selects(&p.endpoint) {
			found = append(found, o)
		}
	}
	return found
}

// dnsProblem returns the ID of the rule that describes the DNS problem of a pod isolated by
// these policies, or "" if DNS works.
func (c *cluster) dnsProblem(p *pod, isolating []*compiled, servers []*pod, at extent) string {
	allowed := func(proto packet.Proto, port uint16) bool {
		if slices.ContainsFunc(isolating, func(o *compiled) bool { return allowsLocalDNS(o, proto) }) {
			return true
		}
		if len(servers) == 0 {
			return slices.ContainsFunc(isolating, func(o *compiled) bool { return allowsSomeDNS(o, proto) })
		}
		return slices.ContainsFunc(servers, func(s *pod) bool { return !c.isolationDenies(p, s, proto, port, policy.Egress, at) })
	}
	udp, tcp := uint16(dnsPort), uint16(dnsPort)
	if len(servers) > 0 {
		udp, tcp = c.dnsPortOf(servers[0], packet.UDP), c.dnsPortOf(servers[0], packet.TCP)
	}
	switch {
	case !allowed(packet.UDP, udp) && udp != dnsPort && allowed(packet.UDP, dnsPort):
		return "dns-port"
	case !allowed(packet.UDP, udp):
		return "no-dns"
	case !allowed(packet.TCP, tcp):
		return "dns-without-tcp"
	}
	return ""
}

// extent is at which of the places where pods without an address may be something holds.
type extent bool

const (
	everywhere extent = true
	somewhere  extent = false
)

// isolationDenies reports whether a connection is denied because NetworkPolicies isolate
// one end in direction d and do not allow it there.
func (c *cluster) isolationDenies(src, dst *pod, proto packet.Proto, port uint16, d policy.Direction, at extent) bool {
	from, to := c.at(src), c.at(dst)
	if from == nil || to == nil {
		return false
	}
	denied := at == everywhere
	c.evaluator().EachPlace(from, to, func(from, to *reachability.Endpoint) {
		a := c.evaluator().Evaluate(from, to, reachability.Port{Proto: proto, Number: port}, reachability.FirstCommon)
		denies := a.Cause == reachability.ByPolicy && !a.Allowed && a.Decision.Direction == d && a.Decision.Reason == policy.Isolated
		if denies != bool(at) {
			denied = denies
		}
	})
	return denied
}

// allowsLocalDNS reports whether a policy allows DNS to a single address, such as a
// node-local cache or a resolver outside of the cluster.
func allowsLocalDNS(p *compiled, proto packet.Proto) bool {
	return slices.ContainsFunc(p.Rules(policy.Egress), func(r policy.Rule) bool {
		return matchesPort(&r, proto, dnsPort) && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool {
			return slices.ContainsFunc(peer.Blocks, func(b policy.Block) bool { return b.Prefix.IsSingleIP() })
		})
	})
}

// allowsSomeDNS reports whether a policy may allow DNS. It is for clusters whose DNS pods
// are not known: the policy allows the DNS port to peers outside of its namespace, or every
// port to peers that include the usual DNS labels.
func allowsSomeDNS(p *compiled, proto packet.Proto) bool {
	return slices.ContainsFunc(p.Rules(policy.Egress), func(r policy.Rule) bool {
		named := !r.AnyPort && (matchesPort(&r, proto, dnsPort) || matchesPort(&r, proto, openShiftDNSPort)) ||
			slices.ContainsFunc(r.Ports, func(p policy.Port) bool { return p.Proto == proto && len(p.Name) >= 3 && p.Name[:3] == "dns" })
		if r.AnyPeer && (named || r.AnyPort) {
			return true
		}
		return (named || r.AnyPort) && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return mayBeDNS(peer, named) })
	})
}

// mayBeDNS reports whether a peer may be the DNS pods. Without the DNS port in the rule
// (named), the peer must include DNS pods as most clusters have them.
func mayBeDNS(peer policy.Peer, named bool) bool {
	switch {
	case peer.Pods != nil && peer.Pods.Namespace != "":
		return peer.Pods.Namespace == metav1.NamespaceSystem
	case peer.Pods != nil:
		return named || peer.Pods.Selects(usualDNS)
	}
	return slices.ContainsFunc(peer.Blocks, func(b policy.Block) bool {
		return slices.ContainsFunc(privateRanges, func(private netip.Prefix) bool {
			own := addressesOf(b)
			return own.ContainsPrefix(private) || named && own.OverlapsPrefix(private)
		})
	})
}

// usualDNS is a DNS pod as in most clusters.
var usualDNS = &policy.Endpoint{
	Namespace: metav1.NamespaceSystem, Name: "coredns", Labels: policy.NewLabels(dnsLabels[0]),
	NamespaceLabels: policy.NewLabels(labels.Set{corev1.LabelMetadataName: metav1.NamespaceSystem}),
}

// privateRanges are the ranges in which DNS pods may have addresses (RFC 1918, RFC 4193).
var privateRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("fc00::/7"),
}

// matchesPort reports whether a rule's ports match a number.
func matchesPort(r *policy.Rule, proto packet.Proto, port uint16) bool {
	return r.AnyPort || slices.ContainsFunc(r.Ports, func(p policy.Port) bool {
		return p.Name == "" && p.Proto == proto && p.First <= port && port <= p.Last
	})
}
