package oracle

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// The policies of administrators are three kinds of one idea. This file copies
// them into one form, in which nothing is decided yet: what the API has is there,
// unread.

// adminPolicy is a policy of an administrator, of whatever kind.
type adminPolicy struct {
	kind, name      string
	tier            tier
	priority        int32
	subject         podSet
	ingress, egress []adminRule
}

// rules returns the rules of one direction.
func (p adminPolicy) rules(dir networkingv1.PolicyType) []adminRule {
	if dir == networkingv1.PolicyTypeEgress {
		return p.egress
	}
	return p.ingress
}

// tier is a group of policies that is asked as a whole before the next one.
type tier string

const (
	adminTier    tier = "Admin"
	baselineTier tier = "Baseline"
)

// adminRule is a rule of either direction.
type adminRule struct {
	action action
	peers  []adminPeer
	ports  []adminPort // none is every one
	// everyone reports whether the rule matches whatever the peer and the port are.
	everyone bool
}

// action is what a rule does: one of the three, or an unknown one.
type action string

const (
	allow action = "Allow" // CNP says Accept
	deny  action = "Deny"
	pass  action = "Pass"
)

// adminPeer is an item of a from or to list. One of its fields is set, if it is as
// it should be.
type adminPeer struct {
	podSet
	nodes       *metav1.LabelSelector
	networks    []string
	domainNames []string
}

// podSet is how these policies name pods, as subjects and as peers.
type podSet struct {
	namespaces *metav1.LabelSelector
	pods       *namespacedPod
}

type namespacedPod struct{ namespaces, pods metav1.LabelSelector }

// adminPort is an item of a list of ports: a name, or the numbers first to last of
// a protocol. The zero adminPort stands for one that has no known field, or more
// than one.
type adminPort struct {
	name        *string
	protocol    corev1.Protocol
	first, last int32
	isRange     bool // written as one
}

// adminPolicies returns the policies of a tier, in no order.
//
// CN-32: of BaselineAdminNetworkPolicies only the one called default counts.
func (c Cluster) adminPolicies(t tier) []adminPolicy {
	var all []adminPolicy
	for _, o := range c.AdminNetworkPolicies {
		if t == adminTier {
			all = append(all, readAdminNetworkPolicy(o))
		}
	}
	for _, o := range c.BaselineAdminNetworkPolicies {
		if t == baselineTier && o.Name == "default" {
			all = append(all, readBaselineAdminNetworkPolicy(o))
		}
	}
	for _, o := range c.ClusterNetworkPolicies {
		if t == tier(o.Spec.Tier) {
			all = append(all, readClusterNetworkPolicy(o))
		}
	}
	return all
}

func readAdminNetworkPolicy(o *v1alpha1.AdminNetworkPolicy) adminPolicy {
	p := adminPolicy{
		kind: "AdminNetworkPolicy", name: o.Name, tier: adminTier, priority: o.Spec.Priority,
		subject: podSet{o.Spec.Subject.Namespaces, podsOfV1alpha1(o.Spec.Subject.Pods)},
	}
	for _, r := range o.Spec.Ingress {
		p.ingress = append(p.ingress, adminRule{
			action: action(r.Action), peers: each(r.From, ingressPeerOfV1alpha1), ports: portsOfV1alpha1(r.Ports),
		})
	}
	for _, r := range o.Spec.Egress {
		p.egress = append(p.egress, adminRule{
			action: action(r.Action), peers: each(r.To, egressPeerOfV1alpha1), ports: portsOfV1alpha1(r.Ports),
		})
	}
	return p
}

func readBaselineAdminNetworkPolicy(o *v1alpha1.BaselineAdminNetworkPolicy) adminPolicy {
	p := adminPolicy{
		kind: "BaselineAdminNetworkPolicy", name: o.Name, tier: baselineTier,
		subject: podSet{o.Spec.Subject.Namespaces, podsOfV1alpha1(o.Spec.Subject.Pods)},
	}
	for _, r := range o.Spec.Ingress {
		p.ingress = append(p.ingress, adminRule{
			action: baselineAction(r.Action), peers: each(r.From, ingressPeerOfV1alpha1), ports: portsOfV1alpha1(r.Ports),
		})
	}
	for _, r := range o.Spec.Egress {
		p.egress = append(p.egress, adminRule{
			action: baselineAction(r.Action), peers: each(r.To, baselinePeerOfV1alpha1), ports: portsOfV1alpha1(r.Ports),
		})
	}
	return p
}

// baselineAction: a BaselineAdminNetworkPolicy does not know Pass.
func baselineAction(a v1alpha1.BaselineAdminNetworkPolicyRuleAction) action {
	if a == v1alpha1.BaselineAdminNetworkPolicyRuleAction(pass) {
		return "unknown: Pass"
	}
	return action(a)
}

func readClusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy) adminPolicy {
	p := adminPolicy{
		kind: "ClusterNetworkPolicy", name: o.Name, tier: tier(o.Spec.Tier), priority: o.Spec.Priority,
		subject: podSet{o.Spec.Subject.Namespaces, podsOfV1alpha2(o.Spec.Subject.Pods)},
	}
	for _, r := range o.Spec.Ingress {
		p.ingress = append(p.ingress, adminRule{
			action: clusterAction(r.Action), peers: each(r.From, ingressPeerOfV1alpha2), ports: each(r.Protocols, portOfV1alpha2),
		})
	}
	for _, r := range o.Spec.Egress {
		p.egress = append(p.egress, adminRule{
			action: clusterAction(r.Action), peers: each(r.To, egressPeerOfV1alpha2), ports: each(r.Protocols, portOfV1alpha2),
		})
	}
	return p
}

// clusterAction: a ClusterNetworkPolicy says Accept, and does not know Allow.
func clusterAction(a v1alpha2.ClusterNetworkPolicyRuleAction) action {
	switch a {
	case v1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return allow
	case v1alpha2.ClusterNetworkPolicyRuleAction(allow):
		return "unknown: Allow"
	}
	return action(a)
}

func podsOfV1alpha1(p *v1alpha1.NamespacedPod) *namespacedPod {
	if p == nil {
		return nil
	}
	return &namespacedPod{p.NamespaceSelector, p.PodSelector}
}

func podsOfV1alpha2(p *v1alpha2.NamespacedPod) *namespacedPod {
	if p == nil {
		return nil
	}
	return &namespacedPod{p.NamespaceSelector, p.PodSelector}
}

func ingressPeerOfV1alpha1(p v1alpha1.AdminNetworkPolicyIngressPeer) adminPeer {
	return adminPeer{podSet: podSet{p.Namespaces, podsOfV1alpha1(p.Pods)}}
}

func egressPeerOfV1alpha1(p v1alpha1.AdminNetworkPolicyEgressPeer) adminPeer {
	return adminPeer{podSet{p.Namespaces, podsOfV1alpha1(p.Pods)}, p.Nodes, texts(p.Networks), texts(p.DomainNames)}
}

func baselinePeerOfV1alpha1(p v1alpha1.BaselineAdminNetworkPolicyEgressPeer) adminPeer {
	return adminPeer{podSet{p.Namespaces, podsOfV1alpha1(p.Pods)}, p.Nodes, texts(p.Networks), nil}
}

func ingressPeerOfV1alpha2(p v1alpha2.ClusterNetworkPolicyIngressPeer) adminPeer {
	return adminPeer{podSet: podSet{p.Namespaces, podsOfV1alpha2(p.Pods)}}
}

func egressPeerOfV1alpha2(p v1alpha2.ClusterNetworkPolicyEgressPeer) adminPeer {
	return adminPeer{podSet{p.Namespaces, podsOfV1alpha2(p.Pods)}, p.Nodes, texts(p.Networks), texts(p.DomainNames)}
}

func portsOfV1alpha1(ports *[]v1alpha1.AdminNetworkPolicyPort) []adminPort {
	if ports == nil {
		return nil
	}
	return each(*ports, portOfV1alpha1)
}

func portOfV1alpha1(p v1alpha1.AdminNetworkPolicyPort) adminPort {
	var readings []adminPort
	if n := p.PortNumber; n != nil {
		readings = append(readings, adminPort{protocol: orTCP(n.Protocol), first: n.Port, last: n.Port})
	}
	if r := p.PortRange; r != nil {
		readings = append(readings, adminPort{protocol: orTCP(r.Protocol), first: r.Start, last: r.End, isRange: true})
	}
	if p.NamedPort != nil {
		readings = append(readings, adminPort{name: p.NamedPort})
	}
	return theOnly(readings)
}

// orTCP: CN-13, a missing protocol is TCP.
func orTCP(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func portOfV1alpha2(p v1alpha2.ClusterNetworkPolicyProtocol) adminPort {
	var readings []adminPort
	if p.TCP != nil {
		readings = append(readings, numbersOfV1alpha2(corev1.ProtocolTCP, p.TCP.DestinationPort))
	}
	if p.UDP != nil {
		readings = append(readings, numbersOfV1alpha2(corev1.ProtocolUDP, p.UDP.DestinationPort))
	}
	if p.SCTP != nil {
		readings = append(readings, numbersOfV1alpha2(corev1.ProtocolSCTP, p.SCTP.DestinationPort))
	}
	if p.DestinationNamedPort != "" {
		readings = append(readings, adminPort{name: &p.DestinationNamedPort})
	}
	return theOnly(readings)
}

// numbersOfV1alpha2: a protocol without a field that is known has no number that a
// port can have (CN-30): a newer API server has a field that is not known here.
func numbersOfV1alpha2(protocol corev1.Protocol, p *v1alpha2.Port) adminPort {
	var readings []adminPort
	if p != nil && p.Number != 0 {
		readings = append(readings, adminPort{first: p.Number, last: p.Number})
	}
	if p != nil && p.Range != nil {
		readings = append(readings, adminPort{first: p.Range.Start, last: p.Range.End, isRange: true})
	}
	port := theOnly(readings)
	port.protocol = protocol
	return port
}

// theOnly returns the reading of an item that has exactly one.
func theOnly(readings []adminPort) adminPort {
	if len(readings) != 1 {
		return adminPort{}
	}
	return readings[0]
}

func each[A, B any](list []A, convert func(A) B) []B {
	var converted []B
	for _, a := range list {
		converted = append(converted, convert(a))
	}
	return converted
}

func texts[T ~string](list []T) []string {
	return each(list, func(t T) string { return string(t) })
}
