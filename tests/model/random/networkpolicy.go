package random

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NetworkPolicy returns a random policy. Half of the policies have no fault.
func (g *Gen) NetworkPolicy(namespace, name string) *networkingv1.NetworkPolicy {
	g.faults = g.OneIn(2)
	defer func() { g.faults = false }()
	const in, out = networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: g.Selector(),
			PolicyTypes: Pick(g, nil, nil, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out},
				[]networkingv1.PolicyType{in, out}, []networkingv1.PolicyType{out, in},
				[]networkingv1.PolicyType{in, in}, []networkingv1.PolicyType{}),
		},
	}
	if g.fault(12) {
		policy.Spec.PolicyTypes = append(policy.Spec.PolicyTypes, "Sideways")
	}
	policy.Spec.Ingress = List(g, g.Rules, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.ports()}
	})
	policy.Spec.Egress = List(g, g.Rules, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.ports()}
	})
	if g.OneIn(4) {
		policy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{}
	}
	return policy
}

func (g *Gen) peers() []networkingv1.NetworkPolicyPeer {
	if g.OneIn(8) {
		return []networkingv1.NetworkPolicyPeer{}
	}
	return List(g, 2, g.peer)
}

func (g *Gen) peer() networkingv1.NetworkPolicyPeer {
	var peer networkingv1.NetworkPolicyPeer
	if g.fault(12) {
		return g.oddPeer()
	}
	kind := g.IntN(5)
	if kind >= 3 {
		peer.IPBlock = g.ipBlock()
		return peer
	}
	if s := g.Selector(); kind != 0 {
		peer.PodSelector = &s
	}
	if s := g.Selector(); kind != 1 {
		peer.NamespaceSelector = &s
	}
	return peer
}

// oddPeer returns an empty peer, or an ipBlock that may be combined with selectors.
func (g *Gen) oddPeer() networkingv1.NetworkPolicyPeer {
	var peer networkingv1.NetworkPolicyPeer
	if g.OneIn(2) {
		return peer
	}
	peer.IPBlock = g.ipBlock()
	everything := &metav1.LabelSelector{}
	peer.PodSelector = Pick(g, nil, everything)
	peer.NamespaceSelector = Pick(g, nil, everything)
	return peer
}

// CIDRs have all forms that API servers have ever accepted.
var CIDRs = []string{
	"0.0.0.0/0", "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/24", "10.1.0.0/30", "10.1.0.2/31", "10.1.0.3/32", "10.2.0.0/24",
	"192.168.0.0/24", "203.0.113.0/24", "203.0.113.9/32",
	"10.1.0.77/24", "10.1.0.3/0", // host bits
	"010.001.000.000/24", "10.1.0.02/32", // leading zeros
	"::/0", "::/0", "fd00::/16", "fd00:1::/64", "fd00:1::2/127", "fd00:2::1/128", "2001:db8::/32", "fd00:1::5/64",
	"::ffff:10.1.0.0/120", "::ffff:0.0.0.0/96", "::ffff:10.1.0.1/128", "::ffff:10.1.0.0/64", // IPv4-mapped
}

// badCIDRs cannot be parsed.
var badCIDRs = []string{"", "10.1.0.0", "300.0.0.0/8", "10.1.0.0/33", "10.1/16", "fd00::/129", "nonsense", " 10.1.0.0/24"}

func (g *Gen) ipBlock() *networkingv1.IPBlock {
	if !g.faults {
		return g.cleanIPBlock()
	}
	cidr := func() string {
		if g.OneIn(12) {
			return Pick(g, badCIDRs...)
		}
		return Pick(g, g.CIDRs...)
	}
	return &networkingv1.IPBlock{CIDR: cidr(), Except: List(g, 2, cidr)}
}

// cleanIPBlock returns a block whose exceptions are all smaller than the block.
func (g *Gen) cleanIPBlock() *networkingv1.IPBlock {
	if !g.OneIn(3) {
		return &networkingv1.IPBlock{CIDR: Pick(g, g.CIDRs...)}
	}
	excepts := []string{"10.1.0.0/24", "10.1.0.2/31", "10.1.0.77/25", "010.1.0.1/32", "::ffff:10.1.0.1/128", "10.2.0.1/32"}
	block := &networkingv1.IPBlock{CIDR: Pick(g, "0.0.0.0/0", "10.0.0.0/8")}
	if g.OneIn(3) {
		excepts = []string{"fd00:1::/64", "fd00:1::2/127", "fd00:2::1/120"}
		block.CIDR = Pick(g, "::/0", "fd00::/16")
	}
	block.Except = append(List(g, 1, func() string { return Pick(g, excepts...) }), Pick(g, excepts...))
	return block
}

func (g *Gen) ports() []networkingv1.NetworkPolicyPort {
	if g.OneIn(4) {
		return nil
	}
	return List(g, 2, g.port)
}

func (g *Gen) port() networkingv1.NetworkPolicyPort {
	var port networkingv1.NetworkPolicyPort
	if !g.OneIn(3) {
		protocol := Pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		if g.fault(12) {
			protocol = Pick[corev1.Protocol](g, "ICMP", "tcp", "", "UDPLite")
		}
		port.Protocol = &protocol
	}
	if g.OneIn(4) {
		return g.spoil(port)
	}
	value := intstr.FromInt32(Pick[int32](g, 80, 80, 81, 53, 1))
	if g.OneIn(3) {
		value = intstr.FromString(Pick(g, "web", "web", "dns", "dns", "adm", "none"))
	}
	if g.fault(16) {
		value = intstr.FromString(Pick(g, "", "80", "Web", "Web"))
	}
	port.Port = &value
	if value.Type == intstr.Int && g.OneIn(3) || g.fault(4) {
		end := Pick[int32](g, 0, 1, 10, 10000) + value.IntVal
		if g.OneIn(4) {
			end = 65535
		}
		port.EndPort = &end
	}
	return g.spoil(port)
}

// spoil sometimes turns a port into one that the API would refuse.
func (g *Gen) spoil(port networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicyPort {
	if g.fault(8) {
		value := Pick(g, intstr.FromInt32(0), intstr.FromInt32(-1), intstr.FromInt32(65536+80), intstr.FromInt32(80-65536))
		port.Port = &value
	}
	if g.fault(8) {
		end := Pick[int32](g, 0, -1, 79, 80, 65536, 65536+80, 8080)
		port.EndPort = &end
	}
	return port
}
