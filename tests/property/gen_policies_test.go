package property

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func (g *gen) policies(namespaces []string) []*networkingv1.NetworkPolicy {
	var policies []*networkingv1.NetworkPolicy
	for i := range g.IntN(6) {
		policies = append(policies, g.policy(pick(g, namespaces...), fmt.Sprintf("np%d", i)))
	}
	return policies
}

// policy makes half of the policies without a fault.
func (g *gen) policy(namespace, name string) *networkingv1.NetworkPolicy {
	g.faults = g.oneIn(2)
	defer func() { g.faults = false }()
	const in, out = networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: g.selector(),
			PolicyTypes: pick(g, nil, nil, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out},
				[]networkingv1.PolicyType{in, out}, []networkingv1.PolicyType{out, in},
				[]networkingv1.PolicyType{in, in}, []networkingv1.PolicyType{}),
		},
	}
	if g.fault(12) {
		policy.Spec.PolicyTypes = append(policy.Spec.PolicyTypes, "Sideways")
	}
	policy.Spec.Ingress = list(g, g.rules, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.ports()}
	})
	policy.Spec.Egress = list(g, g.rules, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.ports()}
	})
	if g.oneIn(4) {
		policy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{}
	}
	return policy
}

func (g *gen) peers() []networkingv1.NetworkPolicyPeer {
	if g.oneIn(8) {
		return []networkingv1.NetworkPolicyPeer{}
	}
	return list(g, 2, g.peer)
}

func (g *gen) peer() networkingv1.NetworkPolicyPeer {
	var peer networkingv1.NetworkPolicyPeer
	if g.fault(12) {
		return g.oddPeer()
	}
	kind := g.IntN(5)
	if kind >= 3 {
		peer.IPBlock = g.ipBlock()
		return peer
	}
	if s := g.selector(); kind != 0 {
		peer.PodSelector = &s
	}
	if s := g.selector(); kind != 1 {
		peer.NamespaceSelector = &s
	}
	return peer
}

// oddPeer is nothing, or an ipBlock that may have selectors beside it.
func (g *gen) oddPeer() networkingv1.NetworkPolicyPeer {
	var peer networkingv1.NetworkPolicyPeer
	if g.oneIn(2) {
		return peer
	}
	peer.IPBlock = g.ipBlock()
	everything := &metav1.LabelSelector{}
	peer.PodSelector = pick(g, nil, everything)
	peer.NamespaceSelector = pick(g, nil, everything)
	return peer
}

// cidrs are written in every way that the API has ever taken.
var cidrs = []string{
	"0.0.0.0/0", "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/24", "10.1.0.0/30", "10.1.0.2/31", "10.1.0.3/32", "10.2.0.0/24",
	"192.168.0.0/24", "203.0.113.0/24", "203.0.113.9/32",
	"10.1.0.77/24", "10.1.0.3/0", // host bits
	"010.001.000.000/24", "10.1.0.02/32", // leading zeros
	"::/0", "::/0", "fd00::/16", "fd00:1::/64", "fd00:1::2/127", "fd00:2::1/128", "2001:db8::/32", "fd00:1::5/64",
	"::ffff:10.1.0.0/120", "::ffff:0.0.0.0/96", "::ffff:10.1.0.1/128", "::ffff:10.1.0.0/64", // mapped
}

// badCIDRs cannot be read.
var badCIDRs = []string{"", "10.1.0.0", "300.0.0.0/8", "10.1.0.0/33", "10.1/16", "fd00::/129", "nonsense", " 10.1.0.0/24"}

func (g *gen) ipBlock() *networkingv1.IPBlock {
	if !g.faults {
		return g.cleanIPBlock()
	}
	cidr := func() string {
		if g.oneIn(12) {
			return pick(g, badCIDRs...)
		}
		return pick(g, cidrs...)
	}
	return &networkingv1.IPBlock{CIDR: cidr(), Except: list(g, 2, cidr)}
}

// cleanIPBlock has only exceptions that are smaller than the block.
func (g *gen) cleanIPBlock() *networkingv1.IPBlock {
	if !g.oneIn(3) {
		return &networkingv1.IPBlock{CIDR: pick(g, cidrs...)}
	}
	excepts := []string{"10.1.0.0/24", "10.1.0.2/31", "10.1.0.77/25", "010.1.0.1/32", "::ffff:10.1.0.1/128", "10.2.0.1/32"}
	block := &networkingv1.IPBlock{CIDR: pick(g, "0.0.0.0/0", "10.0.0.0/8")}
	if g.oneIn(3) {
		excepts = []string{"fd00:1::/64", "fd00:1::2/127", "fd00:2::1/120"}
		block.CIDR = pick(g, "::/0", "fd00::/16")
	}
	block.Except = append(list(g, 1, func() string { return pick(g, excepts...) }), pick(g, excepts...))
	return block
}

func (g *gen) ports() []networkingv1.NetworkPolicyPort {
	if g.oneIn(4) {
		return nil
	}
	return list(g, 2, g.port)
}

func (g *gen) port() networkingv1.NetworkPolicyPort {
	var port networkingv1.NetworkPolicyPort
	if !g.oneIn(3) {
		protocol := pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		if g.fault(12) {
			protocol = pick[corev1.Protocol](g, "ICMP", "tcp", "", "UDPLite")
		}
		port.Protocol = &protocol
	}
	if g.oneIn(4) {
		return g.spoil(port)
	}
	value := intstr.FromInt32(pick[int32](g, 80, 80, 81, 53, 1))
	if g.oneIn(3) {
		value = intstr.FromString(pick(g, "web", "web", "dns", "dns", "adm", "none"))
	}
	if g.fault(16) {
		value = intstr.FromString(pick(g, "", "80", "Web", "Web"))
	}
	port.Port = &value
	if value.Type == intstr.Int && g.oneIn(3) || g.fault(4) {
		end := pick[int32](g, 0, 1, 10, 10000) + value.IntVal
		if g.oneIn(4) {
			end = 65535
		}
		port.EndPort = &end
	}
	return g.spoil(port)
}

// spoil sometimes makes a port that the API would refuse.
func (g *gen) spoil(port networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicyPort {
	if g.fault(8) {
		value := pick(g, intstr.FromInt32(0), intstr.FromInt32(-1), intstr.FromInt32(65536+80), intstr.FromInt32(80-65536))
		port.Port = &value
	}
	if g.fault(8) {
		end := pick[int32](g, 0, -1, 79, 80, 65536, 65536+80, 8080)
		port.EndPort = &end
	}
	return port
}
