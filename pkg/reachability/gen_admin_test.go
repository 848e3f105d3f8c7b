package reachability

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
)

// addAdminPolicies adds policies of every administrators' kind to half of the
// clusters.
func (g gen) addAdminPolicies(in *clusterstate.Input) {
	if g.oneIn(2) {
		return
	}
	for i := range g.IntN(3) {
		in.Policies = append(in.Policies, g.adminPolicy(fmt.Sprintf("anp%d", i)))
	}
	for i := range g.IntN(3) {
		in.Policies = append(in.Policies, g.clusterPolicy(fmt.Sprintf("cnp%d", i)))
	}
	if g.oneIn(2) {
		in.Policies = append(in.Policies, g.baselinePolicy())
	}
}

func (g gen) adminPolicy(name string) *v1alpha1.AdminNetworkPolicy {
	p := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Priority = int32(g.IntN(3))
	p.Spec.Subject = g.adminSubject()
	action := func() v1alpha1.AdminNetworkPolicyRuleAction {
		return pick[v1alpha1.AdminNetworkPolicyRuleAction](g, "Allow", "Deny", "Deny", "Pass")
	}
	p.Spec.Ingress = upTo(g, 3, func() v1alpha1.AdminNetworkPolicyIngressRule {
		return v1alpha1.AdminNetworkPolicyIngressRule{Action: action(), From: oneOrTwo(g, g.source), Ports: g.adminPorts()}
	})
	p.Spec.Egress = upTo(g, 3, func() v1alpha1.AdminNetworkPolicyEgressRule {
		return v1alpha1.AdminNetworkPolicyEgressRule{Action: action(), To: oneOrTwo(g, func() v1alpha1.AdminNetworkPolicyEgressPeer {
			d := g.destination()
			return v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: d.Namespaces, Pods: (*v1alpha1.NamespacedPod)(d.Pods), Nodes: d.Nodes, Networks: networks(d), DomainNames: domainNames(d)}
		}), Ports: g.adminPorts()}
	})
	return p
}

func (g gen) baselinePolicy() *v1alpha1.BaselineAdminNetworkPolicy {
	p := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	p.Spec.Subject = g.adminSubject()
	action := func() v1alpha1.BaselineAdminNetworkPolicyRuleAction {
		return pick[v1alpha1.BaselineAdminNetworkPolicyRuleAction](g, "Allow", "Deny")
	}
	p.Spec.Ingress = upTo(g, 3, func() v1alpha1.BaselineAdminNetworkPolicyIngressRule {
		return v1alpha1.BaselineAdminNetworkPolicyIngressRule{Action: action(), From: oneOrTwo(g, g.source), Ports: g.adminPorts()}
	})
	p.Spec.Egress = upTo(g, 3, func() v1alpha1.BaselineAdminNetworkPolicyEgressRule {
		return v1alpha1.BaselineAdminNetworkPolicyEgressRule{Action: action(), To: oneOrTwo(g, func() v1alpha1.BaselineAdminNetworkPolicyEgressPeer {
			d := g.destination()
			return v1alpha1.BaselineAdminNetworkPolicyEgressPeer{Namespaces: d.Namespaces, Pods: (*v1alpha1.NamespacedPod)(d.Pods), Nodes: d.Nodes, Networks: networks(d)}
		}), Ports: g.adminPorts()}
	})
	return p
}

func (g gen) clusterPolicy(name string) *v1alpha2.ClusterNetworkPolicy {
	p := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Tier, p.Spec.Priority = pick(g, v1alpha2.AdminTier, v1alpha2.BaselineTier), int32(g.IntN(3))
	p.Spec.Subject = g.subject()
	action := func() v1alpha2.ClusterNetworkPolicyRuleAction {
		return pick[v1alpha2.ClusterNetworkPolicyRuleAction](g, "Accept", "Deny", "Deny", "Pass")
	}
	p.Spec.Ingress = upTo(g, 3, func() v1alpha2.ClusterNetworkPolicyIngressRule {
		return v1alpha2.ClusterNetworkPolicyIngressRule{Action: action(), Protocols: upTo(g, 2, g.protocol), From: oneOrTwo(g, func() v1alpha2.ClusterNetworkPolicyIngressPeer {
			s := g.source()
			return v1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: s.Namespaces, Pods: (*v1alpha2.NamespacedPod)(s.Pods)}
		})}
	})
	p.Spec.Egress = upTo(g, 3, func() v1alpha2.ClusterNetworkPolicyEgressRule {
		return v1alpha2.ClusterNetworkPolicyEgressRule{Action: action(), To: oneOrTwo(g, g.destination), Protocols: upTo(g, 2, g.protocol)}
	})
	return p
}

func oneOrTwo[T any](g gen, one func() T) []T { return append(upTo(g, 1, one), one()) }

func (g gen) subject() v1alpha2.ClusterNetworkPolicySubject {
	switch g.IntN(10) {
	case 0:
		return v1alpha2.ClusterNetworkPolicySubject{} // nothing that is known
	case 1, 2, 3:
		return v1alpha2.ClusterNetworkPolicySubject{Pods: g.namespacedPod()}
	}
	return v1alpha2.ClusterNetworkPolicySubject{Namespaces: g.selector()}
}

func (g gen) adminSubject() v1alpha1.AdminNetworkPolicySubject {
	s := g.subject()
	return v1alpha1.AdminNetworkPolicySubject{Namespaces: s.Namespaces, Pods: (*v1alpha1.NamespacedPod)(s.Pods)}
}

func (g gen) namespacedPod() *v1alpha2.NamespacedPod {
	return &v1alpha2.NamespacedPod{NamespaceSelector: *g.selector(), PodSelector: *g.selector()}
}

func (g gen) source() v1alpha1.AdminNetworkPolicyIngressPeer {
	switch {
	case g.oneIn(15):
		return v1alpha1.AdminNetworkPolicyIngressPeer{}
	case g.oneIn(2):
		return v1alpha1.AdminNetworkPolicyIngressPeer{Pods: (*v1alpha1.NamespacedPod)(g.namespacedPod())}
	}
	return v1alpha1.AdminNetworkPolicyIngressPeer{Namespaces: g.selector()}
}

func (g gen) destination() v1alpha2.ClusterNetworkPolicyEgressPeer {
	switch g.IntN(16) {
	case 0:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{}
	case 1, 2:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{DomainNames: []v1alpha2.DomainName{pick[v1alpha2.DomainName](g, "a.example", "*.example.", "bad*name")}}
	case 3, 4, 5:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Nodes: g.selector()}
	case 6, 7, 8, 9, 10:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Networks: oneOrTwo(g, func() v1alpha2.CIDR {
			return pick[v1alpha2.CIDR](g, "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/28", "192.168.0.0/31", "203.0.113.0/24", "203.0.113.0/25", "::/0", "fd00:1::/64", "2001:db8::/32", "bad")
		})}
	case 11, 12:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Pods: g.namespacedPod()}
	}
	return v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: g.selector()}
}

func networks(d v1alpha2.ClusterNetworkPolicyEgressPeer) []v1alpha1.CIDR {
	var out []v1alpha1.CIDR
	for _, n := range d.Networks {
		out = append(out, v1alpha1.CIDR(n))
	}
	return out
}

func domainNames(d v1alpha2.ClusterNetworkPolicyEgressPeer) []v1alpha1.DomainName {
	var out []v1alpha1.DomainName
	for _, n := range d.DomainNames {
		out = append(out, v1alpha1.DomainName(n))
	}
	return out
}

func (g gen) adminPorts() *[]v1alpha1.AdminNetworkPolicyPort {
	if g.oneIn(2) {
		return nil
	}
	ports := upTo(g, 2, func() v1alpha1.AdminNetworkPolicyPort {
		name, proto := pick(g, "web", "dns"), pick[corev1.Protocol](g, "", "TCP", "TCP", "UDP", "SCTP", "ICMP")
		switch g.IntN(8) {
		case 0:
			return v1alpha1.AdminNetworkPolicyPort{}
		case 1, 2, 3:
			return v1alpha1.AdminNetworkPolicyPort{NamedPort: &name}
		case 4, 5:
			return v1alpha1.AdminNetworkPolicyPort{PortRange: &v1alpha1.PortRange{Protocol: proto, Start: pick[int32](g, 1, 80, 81), End: pick[int32](g, 80, 8080, 65535)}}
		}
		return v1alpha1.AdminNetworkPolicyPort{PortNumber: &v1alpha1.Port{Protocol: proto, Port: pick[int32](g, 80, 80, 53, 0)}}
	})
	return &ports
}

func (g gen) protocol() v1alpha2.ClusterNetworkPolicyProtocol {
	port := &v1alpha2.Port{Number: pick[int32](g, 80, 80, 53, 65536)}
	if g.oneIn(2) {
		port = &v1alpha2.Port{Range: &v1alpha2.PortRange{Start: pick[int32](g, 1, 80, 81), End: pick[int32](g, 80, 8080, 65535)}}
	}
	switch g.IntN(8) {
	case 0:
		return v1alpha2.ClusterNetworkPolicyProtocol{}
	case 1, 2:
		return v1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: pick(g, "web", "dns")}
	case 3:
		return v1alpha2.ClusterNetworkPolicyProtocol{UDP: &v1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}}
	case 4:
		return v1alpha2.ClusterNetworkPolicyProtocol{SCTP: &v1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}}
	}
	return v1alpha2.ClusterNetworkPolicyProtocol{TCP: &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}
}
