package random

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// AdminNetworkPolicy returns a random policy. Most of the policies have no fault.
func (g *Gen) AdminNetworkPolicy(name string) *v1alpha1.AdminNetworkPolicy {
	g.faults = g.OneIn(3)
	defer func() { g.faults = false }()
	p := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Priority = g.priority()
	p.Spec.Subject = v1alpha1Subject(g.adminSubject())
	p.Spec.Ingress = List(g, g.Rules, func() v1alpha1.AdminNetworkPolicyIngressRule {
		r := g.adminRule("Allow", "Pass")
		return v1alpha1.AdminNetworkPolicyIngressRule{
			Action: v1alpha1.AdminNetworkPolicyRuleAction(r.action), From: v1alpha1Sources(r.pods), Ports: g.v1alpha1Ports(true),
		}
	})
	p.Spec.Egress = List(g, g.Rules, func() v1alpha1.AdminNetworkPolicyEgressRule {
		r := g.adminRule("Allow", "Pass")
		rule := v1alpha1.AdminNetworkPolicyEgressRule{Action: v1alpha1.AdminNetworkPolicyRuleAction(r.action)}
		for _, peer := range r.peers() {
			rule.To = append(rule.To, v1alpha1.AdminNetworkPolicyEgressPeer{
				Namespaces: peer.Namespaces, Pods: (*v1alpha1.NamespacedPod)(peer.Pods), Nodes: peer.Nodes,
				Networks: converted[v1alpha1.CIDR](peer.Networks), DomainNames: converted[v1alpha1.DomainName](peer.DomainNames),
			})
		}
		rule.Ports = g.v1alpha1Ports(len(r.nonPods) == 0)
		return rule
	})
	return p
}

// BaselineAdminNetworkPolicy is AdminNetworkPolicy for that kind.
func (g *Gen) BaselineAdminNetworkPolicy(name string) *v1alpha1.BaselineAdminNetworkPolicy {
	g.faults = g.OneIn(3)
	defer func() { g.faults = false }()
	p := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Subject = v1alpha1Subject(g.adminSubject())
	p.Spec.Ingress = List(g, g.Rules, func() v1alpha1.BaselineAdminNetworkPolicyIngressRule {
		r := g.adminRule("Allow", "Deny")
		return v1alpha1.BaselineAdminNetworkPolicyIngressRule{
			Action: v1alpha1.BaselineAdminNetworkPolicyRuleAction(r.action), From: v1alpha1Sources(r.pods), Ports: g.v1alpha1Ports(true),
		}
	})
	p.Spec.Egress = List(g, g.Rules, func() v1alpha1.BaselineAdminNetworkPolicyEgressRule {
		r := g.adminRule("Allow", "Deny")
		rule := v1alpha1.BaselineAdminNetworkPolicyEgressRule{Action: v1alpha1.BaselineAdminNetworkPolicyRuleAction(r.action)}
		for _, peer := range r.peers() {
			if peer.DomainNames != nil && !g.faults { // this kind does not support them
				continue
			}
			rule.To = append(rule.To, v1alpha1.BaselineAdminNetworkPolicyEgressPeer{
				Namespaces: peer.Namespaces, Pods: (*v1alpha1.NamespacedPod)(peer.Pods), Nodes: peer.Nodes,
				Networks: converted[v1alpha1.CIDR](peer.Networks),
			})
		}
		rule.Ports = g.v1alpha1Ports(len(r.nonPods) == 0)
		return rule
	})
	return p
}

// ClusterNetworkPolicy is AdminNetworkPolicy for that kind.
func (g *Gen) ClusterNetworkPolicy(name string) *proposed.ClusterNetworkPolicy {
	g.faults = g.OneIn(3)
	defer func() { g.faults = false }()
	p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Tier = Pick(g, v1beta1.AdminTier, v1beta1.BaselineTier)
	if g.fault(12) {
		p.Spec.Tier = Pick[v1beta1.Tier](g, "", "NetworkPolicy", "admin")
	}
	p.Spec.Priority = g.priority()
	p.Spec.Subject.ClusterNetworkPolicySubject = g.adminSubject()
	p.Spec.Ingress = List(g, g.Rules, func() proposed.IngressRule {
		r := g.adminRule("Accept", "Pass")
		rule := proposed.IngressRule{Action: v1beta1.ClusterNetworkPolicyRuleAction(r.action), Protocols: g.v1beta1Protocols(len(r.nonPods) == 0)}
		for _, peer := range r.peers() {
			if peer.DomainNames == nil {
				rule.From = append(rule.From, proposed.IngressPeer{
					ClusterNetworkPolicyIngressPeer: v1beta1.ClusterNetworkPolicyIngressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods},
					Nodes:                           peer.Nodes, Networks: peer.Networks,
				})
			}
		}
		return rule
	})
	p.Spec.Egress = List(g, g.Rules, func() proposed.EgressRule {
		r := g.adminRule("Accept", "Pass")
		rule := proposed.EgressRule{Action: v1beta1.ClusterNetworkPolicyRuleAction(r.action), Protocols: g.v1beta1Protocols(len(r.nonPods) == 0)}
		for _, peer := range r.peers() {
			rule.To = append(rule.To, proposed.EgressPeer{ClusterNetworkPolicyEgressPeer: peer})
		}
		return rule
	})
	d := g.derived(p)
	d.addAccounts(p)
	d.addGroups(p)
	return p
}

// addAccounts replaces some subjects and peers by service accounts (NPEP-173).
func (g *Gen) addAccounts(p *proposed.ClusterNetworkPolicy) {
	replace := func(accounts **proposed.ServiceAccounts, namespaces **metav1.LabelSelector, pods **v1beta1.NamespacedPod) {
		if *namespaces == nil && *pods == nil || !g.OneIn(3) {
			return
		}
		*accounts = g.serviceAccounts()
		if !g.fault(6) {
			*namespaces, *pods = nil, nil
		}
	}
	replace(&p.Spec.Subject.ServiceAccounts, &p.Spec.Subject.Namespaces, &p.Spec.Subject.Pods)
	for _, r := range p.Spec.Ingress {
		for i := range r.From {
			replace(&r.From[i].ServiceAccounts, &r.From[i].Namespaces, &r.From[i].Pods)
		}
	}
	for _, r := range p.Spec.Egress {
		for i := range r.To {
			replace(&r.To[i].ServiceAccounts, &r.To[i].Namespaces, &r.To[i].Pods)
		}
	}
}

// serviceAccounts returns a selector for the accounts of ServiceAccountOf.
func (g *Gen) serviceAccounts() *proposed.ServiceAccounts {
	one := func() string {
		if g.fault(8) {
			return Pick(g, "", "S", "s/t")
		}
		return Pick(g, "default", "s", "s", "t.u", "none")
	}
	s := &proposed.ServiceAccounts{NamespaceSelector: g.Selector(), Names: append(List(g, 1, one), one())}
	if g.fault(8) {
		s.Names = nil
	}
	return s
}

// addGroups replaces some networks by groups of networks (NPEP-182).
func (g *Gen) addGroups(p *proposed.ClusterNetworkPolicy) {
	replace := func(groups **proposed.CIDRGroups, networks *[]v1beta1.CIDR) {
		if *networks == nil || !g.OneIn(2) {
			return
		}
		*groups = g.cidrGroups()
		if !g.fault(6) {
			*networks = nil
		}
	}
	for _, r := range p.Spec.Ingress {
		for i := range r.From {
			replace(&r.From[i].CIDRGroups, &r.From[i].Networks)
		}
	}
	for _, r := range p.Spec.Egress {
		for i := range r.To {
			replace(&r.To[i].CIDRGroups, &r.To[i].Networks)
		}
	}
}

// cidrGroups selects some of the groups that CIDRGroups returns, and in policies with faults others.
func (g *Gen) cidrGroups() *proposed.CIDRGroups {
	s := &proposed.CIDRGroups{}
	kind := g.IntN(3)
	if kind == 0 || g.fault(8) {
		s.Selector = new(g.Selector())
	}
	one := func() string {
		if g.fault(4) {
			return Pick(g, "", "none", "g3")
		}
		return Pick(g, groupNames...)
	}
	if kind != 0 && !g.fault(8) {
		s.Names = append(List(g, 1, one), one())
	}
	return s
}

// groupNames are groups that every cluster has.
var groupNames = []string{"g0", "g1", "g2"}

// CIDRGroups returns the groups of a cluster with these policies. Most have no fault.
func (g *Gen) CIDRGroups(policies []*proposed.ClusterNetworkPolicy) []*proposed.CIDRGroup {
	d := g.derived(policies)
	d.faults = d.OneIn(4)
	names := groupNames
	if d.OneIn(2) {
		names = append(slices.Clone(names), "g3")
	}
	var groups []*proposed.CIDRGroup
	for _, name := range names {
		group := &proposed.CIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: d.Labels()}}
		if !d.OneIn(6) {
			group.Spec.CIDRs = d.networks()
		}
		groups = append(groups, group)
	}
	return groups
}

func (g *Gen) priority() int32 { return Pick[int32](g, 0, 1, 1, 1, 2, 10, 1000) }

// adminSubject returns a subject in the types of v1beta1, like all parts that the kinds share.
func (g *Gen) adminSubject() v1beta1.ClusterNetworkPolicySubject {
	var s v1beta1.ClusterNetworkPolicySubject
	kind := g.IntN(3)
	if kind == 0 || g.fault(16) {
		s.Namespaces = new(g.Selector())
	}
	if kind != 0 && !g.fault(16) {
		s.Pods = g.namespacedPod()
	}
	return s
}

func (g *Gen) namespacedPod() *v1beta1.NamespacedPod {
	return &v1beta1.NamespacedPod{NamespaceSelector: g.Selector(), PodSelector: g.Selector()}
}

// adminRule is a rule without its ports. Ingress uses only peers that are pods.
type adminRule struct {
	action        string
	pods, nonPods []v1beta1.ClusterNetworkPolicyEgressPeer
}

// peers returns all peers, with the pods in the middle.
func (r adminRule) peers() []v1beta1.ClusterNetworkPolicyEgressPeer {
	middle := len(r.nonPods) / 2
	return slices.Concat(r.nonPods[:middle], r.pods, r.nonPods[middle:])
}

// adminRule returns a rule of a kind that has two actions in addition to Deny. The first one
// allows.
func (g *Gen) adminRule(allow, second string) adminRule {
	r := adminRule{action: Pick(g, allow, allow, "Deny", "Deny", second)}
	if g.fault(12) {
		r.action = Pick(g, "", "Drop", "deny", "Allow", "Accept", "Pass")
	}
	r.pods = List(g, 1, g.podsPeer)
	r.nonPods = List(g, 1, func() v1beta1.ClusterNetworkPolicyEgressPeer { return g.nonPodPeer(r.action == allow) })
	if len(r.pods) == 0 && !g.fault(4) {
		r.pods = append(r.pods, g.podsPeer())
	}
	if g.OneIn(2) && len(r.nonPods) > 0 { // egress may have peers that are not pods
		r.pods = nil
	}
	return r
}

func (g *Gen) podsPeer() v1beta1.ClusterNetworkPolicyEgressPeer {
	var peer v1beta1.ClusterNetworkPolicyEgressPeer
	kind := g.IntN(2)
	if kind == 0 || g.fault(16) {
		peer.Namespaces = new(g.Selector())
	}
	if kind == 1 && !g.fault(16) {
		peer.Pods = g.namespacedPod()
	}
	return peer
}

// nonPodPeer returns a peer that is not pods. Only rules that allow may have domain names.
func (g *Gen) nonPodPeer(allow bool) v1beta1.ClusterNetworkPolicyEgressPeer {
	var peer v1beta1.ClusterNetworkPolicyEgressPeer
	kind := Pick(g, "nodes", "networks", "networks", "names", "names")
	if kind == "names" && !allow && !g.fault(4) {
		kind = "networks"
	}
	if kind == "nodes" || g.fault(24) {
		peer.Nodes = new(g.Selector())
	}
	if kind == "networks" || g.fault(24) {
		peer.Networks = g.networks()
	}
	if kind == "names" && !g.fault(24) {
		peer.DomainNames = g.domainNames()
	}
	return peer
}

func (g *Gen) networks() []v1beta1.CIDR {
	if g.OneIn(4) {
		return []v1beta1.CIDR{"0.0.0.0/0", "::/0"}
	}
	one := func() v1beta1.CIDR {
		if g.fault(12) {
			return v1beta1.CIDR(Pick(g, badCIDRs...))
		}
		return v1beta1.CIDR(Pick(g, g.CIDRs...))
	}
	return append(List(g, 2, one), one())
}

func (g *Gen) domainNames() []v1beta1.DomainName {
	one := func() v1beta1.DomainName {
		if g.fault(12) {
			return Pick[v1beta1.DomainName](g, "", "*", "*.", "a..test", "*.*.test", "x.*", ".test")
		}
		return Pick[v1beta1.DomainName](g, "x.test", "X.Test.", "a.x.test", "*.x.test", "*.X.TEST.", "*.test", "none.test", "test", "*.local")
	}
	return append(List(g, 1, one), one())
}

// v1alpha1Ports returns ports that are often named if named is set, and rarely otherwise.
func (g *Gen) v1alpha1Ports(named bool) *[]v1alpha1.AdminNetworkPolicyPort {
	switch g.IntN(12) {
	case 0, 1, 2:
		return nil
	case 3:
		return &[]v1alpha1.AdminNetworkPolicyPort{} // early API servers accepted it
	}
	named = named || g.faults || g.OneIn(4)
	one := func() v1alpha1.AdminNetworkPolicyPort { return g.v1alpha1Port(named) }
	return new(append(List(g, 1, one), one()))
}

func (g *Gen) v1alpha1Port(named bool) v1alpha1.AdminNetworkPolicyPort {
	var port v1alpha1.AdminNetworkPolicyPort
	kind := g.IntN(3)
	if kind == 0 && named || g.fault(12) {
		port.NamedPort = new(g.portName())
	}
	if kind == 1 || kind == 0 && !named || g.fault(12) {
		port.PortNumber = &v1alpha1.Port{Protocol: g.protocol(), Port: g.portNumber()}
	}
	if kind == 2 && !g.fault(12) {
		start, end := g.portRange()
		port.PortRange = &v1alpha1.PortRange{Protocol: g.protocol(), Start: start, End: end}
	}
	return port
}

func (g *Gen) v1beta1Protocols(named bool) []v1beta1.ClusterNetworkPolicyProtocol {
	if g.OneIn(3) {
		return nil
	}
	named = named || g.faults || g.OneIn(4)
	one := func() v1beta1.ClusterNetworkPolicyProtocol { return g.v1beta1Protocol(named) }
	return append(List(g, 1, one), one())
}

func (g *Gen) v1beta1Protocol(named bool) v1beta1.ClusterNetworkPolicyProtocol {
	var p v1beta1.ClusterNetworkPolicyProtocol
	kind := g.IntN(6)
	if kind < 2 && named || g.fault(12) {
		p.DestinationNamedPort = g.portName()
	}
	if kind == 2 || kind < 2 && !named || g.fault(12) {
		p.TCP = &v1beta1.ClusterNetworkPolicyProtocolTCP{DestinationPort: g.destinationPort()}
	}
	if kind == 3 || kind == 4 && !g.fault(12) {
		p.UDP = &v1beta1.ClusterNetworkPolicyProtocolUDP{DestinationPort: g.destinationPort()}
	}
	if kind == 5 {
		p.SCTP = &v1beta1.ClusterNetworkPolicyProtocolSCTP{DestinationPort: g.destinationPort()}
	}
	return p
}

func (g *Gen) destinationPort() *v1beta1.Port {
	if g.fault(12) {
		return nil
	}
	p := &v1beta1.Port{}
	kind := g.IntN(2)
	if kind == 0 || g.fault(12) {
		p.Number = g.portNumber()
	}
	if kind == 1 && !g.fault(12) {
		start, end := g.portRange()
		p.Range = &v1beta1.PortRange{Start: start, End: end}
	}
	return p
}

func (g *Gen) portName() string {
	if g.fault(8) {
		return Pick(g, "", "80", "Web")
	}
	return Pick(g, "web", "web", "dns", "dns", "adm", "none")
}

func (g *Gen) protocol() corev1.Protocol {
	if g.fault(12) {
		return Pick[corev1.Protocol](g, "ICMP", "tcp", "UDPLite")
	}
	return Pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, "", corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

func (g *Gen) portNumber() int32 {
	if g.fault(12) {
		return Pick[int32](g, 0, -1, 65536, 65536+80)
	}
	return Pick[int32](g, 80, 80, 81, 53, 1)
}

func (g *Gen) portRange() (start, end int32) {
	start = g.portNumber()
	end = start + Pick[int32](g, 1, 10, 10000)
	if g.OneIn(4) {
		end = 65535
	}
	if g.fault(6) {
		end = Pick(g, start, start-1, 0, -1, 65536+80)
	}
	return start, end
}

func v1alpha1Subject(s v1beta1.ClusterNetworkPolicySubject) v1alpha1.AdminNetworkPolicySubject {
	return v1alpha1.AdminNetworkPolicySubject{Namespaces: s.Namespaces, Pods: (*v1alpha1.NamespacedPod)(s.Pods)}
}

func v1alpha1Sources(peers []v1beta1.ClusterNetworkPolicyEgressPeer) []v1alpha1.AdminNetworkPolicyIngressPeer {
	var sources []v1alpha1.AdminNetworkPolicyIngressPeer
	for _, p := range peers {
		sources = append(sources, v1alpha1.AdminNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: (*v1alpha1.NamespacedPod)(p.Pods)})
	}
	return sources
}

func converted[T, S ~string](texts []S) []T {
	var all []T
	for _, text := range texts {
		all = append(all, T(text))
	}
	return all
}
