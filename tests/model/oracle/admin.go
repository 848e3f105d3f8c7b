package oracle

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// The three kinds of administrators' policies share one model. This file copies them into one form
// without interpreting their fields.

// adminPolicy is an administrator's policy of any kind.
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

// tier is a group of policies that is evaluated before the next group.
type tier string

const (
	adminTier    tier = "Admin"
	baselineTier tier = "Baseline"
)

// adminRule is a rule of either direction.
type adminRule struct {
	action action
	peers  []adminPeer
	ports  []adminPort // none means every port
	// everyone reports whether the rule matches every peer and port.
	everyone bool
}

// action is what a rule does: one of the three, or an unknown one.
type action string

const (
	allow action = "Allow" // CNP says Accept
	deny  action = "Deny"
	pass  action = "Pass"
)

// adminPeer is an item of a from or to list. A valid one has exactly one field set.
type adminPeer struct {
	podSet
	nodes       *metav1.LabelSelector
	networks    []string
	domainNames []string
	groups      *proposed.CIDRGroups
	npep127     bool // the field is one that NPEP-127 proposes
	all         bool // NPEP-248
	ofIngress   bool
}

// podSet selects pods, as subjects and as peers.
type podSet struct {
	namespaces *metav1.LabelSelector
	pods       *namespacedPod
	accounts   *accountSet
}

type accountSet struct {
	namespaces metav1.LabelSelector
	names      []string
}

type namespacedPod struct{ namespaces, pods metav1.LabelSelector }

// adminPort is an item of a list of ports: a name, or the numbers first to last of a protocol. The
// zero adminPort stands for an item without a known field or with several.
type adminPort struct {
	name        *string
	protocol    corev1.Protocol
	first, last int32
	isRange     bool // written as one
}

// adminPolicies returns the policies of a tier, in no order.
//
// CN-32: only the BaselineAdminNetworkPolicy named default counts.
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
		subject: podSet{namespaces: o.Spec.Subject.Namespaces, pods: podsOfV1alpha1(o.Spec.Subject.Pods)},
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
		subject: podSet{namespaces: o.Spec.Subject.Namespaces, pods: podsOfV1alpha1(o.Spec.Subject.Pods)},
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

func readClusterNetworkPolicy(o *proposed.ClusterNetworkPolicy) adminPolicy {
	p := adminPolicy{
		kind: "ClusterNetworkPolicy", name: o.Name, tier: tier(o.Spec.Tier), priority: o.Spec.Priority,
		subject: podSet{o.Spec.Subject.Namespaces, podsOfV1beta1(o.Spec.Subject.Pods), accountsOf(o.Spec.Subject.ServiceAccounts)},
	}
	for _, r := range o.Spec.Ingress {
		p.ingress = append(p.ingress, adminRule{
			action: clusterAction(r.Action), peers: each(r.From, ingressPeerOfV1beta1), ports: each(r.Protocols, portOfV1beta1),
		})
	}
	for _, r := range o.Spec.Egress {
		p.egress = append(p.egress, adminRule{
			action: clusterAction(r.Action), peers: each(r.To, egressPeerOfV1beta1), ports: each(r.Protocols, portOfV1beta1),
		})
	}
	return p
}

// clusterAction: a ClusterNetworkPolicy says Accept, and does not know Allow.
func clusterAction(a v1beta1.ClusterNetworkPolicyRuleAction) action {
	switch a {
	case v1beta1.ClusterNetworkPolicyRuleActionAccept:
		return allow
	case v1beta1.ClusterNetworkPolicyRuleAction(allow):
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

func podsOfV1beta1(p *v1beta1.NamespacedPod) *namespacedPod {
	if p == nil {
		return nil
	}
	return &namespacedPod{p.NamespaceSelector, p.PodSelector}
}

func accountsOf(a *proposed.ServiceAccounts) *accountSet {
	if a == nil {
		return nil
	}
	return &accountSet{a.NamespaceSelector, a.Names}
}

func ingressPeerOfV1alpha1(p v1alpha1.AdminNetworkPolicyIngressPeer) adminPeer {
	return adminPeer{podSet: podSet{namespaces: p.Namespaces, pods: podsOfV1alpha1(p.Pods)}}
}

func egressPeerOfV1alpha1(p v1alpha1.AdminNetworkPolicyEgressPeer) adminPeer {
	return adminPeer{podSet: podSet{namespaces: p.Namespaces, pods: podsOfV1alpha1(p.Pods)}, nodes: p.Nodes, networks: texts(p.Networks), domainNames: texts(p.DomainNames)}
}

func baselinePeerOfV1alpha1(p v1alpha1.BaselineAdminNetworkPolicyEgressPeer) adminPeer {
	return adminPeer{podSet: podSet{namespaces: p.Namespaces, pods: podsOfV1alpha1(p.Pods)}, nodes: p.Nodes, networks: texts(p.Networks)}
}

func ingressPeerOfV1beta1(p proposed.IngressPeer) adminPeer {
	peer := adminPeer{podSet: podSet{p.Namespaces, podsOfV1beta1(p.Pods), accountsOf(p.ServiceAccounts)}, nodes: p.Nodes, networks: texts(p.Networks), groups: p.CIDRGroups, all: p.All != nil, ofIngress: true}
	peer.npep127 = peer.nodes != nil || peer.networks != nil || peer.groups != nil
	return peer
}

func egressPeerOfV1beta1(p proposed.EgressPeer) adminPeer {
	return adminPeer{podSet: podSet{p.Namespaces, podsOfV1beta1(p.Pods), accountsOf(p.ServiceAccounts)}, nodes: p.Nodes, networks: texts(p.Networks), domainNames: texts(p.DomainNames), groups: p.CIDRGroups, all: p.All != nil}
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
	return single(readings)
}

// orTCP: CN-13, a missing protocol is TCP.
func orTCP(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func portOfV1beta1(p v1beta1.ClusterNetworkPolicyProtocol) adminPort {
	var readings []adminPort
	if p.TCP != nil {
		readings = append(readings, numbersOfV1beta1(corev1.ProtocolTCP, p.TCP.DestinationPort))
	}
	if p.UDP != nil {
		readings = append(readings, numbersOfV1beta1(corev1.ProtocolUDP, p.UDP.DestinationPort))
	}
	if p.SCTP != nil {
		readings = append(readings, numbersOfV1beta1(corev1.ProtocolSCTP, p.SCTP.DestinationPort))
	}
	if p.DestinationNamedPort != "" {
		readings = append(readings, adminPort{name: &p.DestinationNamedPort})
	}
	return single(readings)
}

// numbersOfV1beta1: a protocol without a known field gets no valid port number (CN-30), because a
// newer API server may have set a field that is unknown here.
func numbersOfV1beta1(protocol corev1.Protocol, p *v1beta1.Port) adminPort {
	var readings []adminPort
	if p != nil && p.Number != 0 {
		readings = append(readings, adminPort{first: p.Number, last: p.Number})
	}
	if p != nil && p.Range != nil {
		readings = append(readings, adminPort{first: p.Range.Start, last: p.Range.End, isRange: true})
	}
	port := single(readings)
	port.protocol = protocol
	return port
}

// single returns the only reading, or the zero adminPort if there is not exactly one.
func single(readings []adminPort) adminPort {
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
