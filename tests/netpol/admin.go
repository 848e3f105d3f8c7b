package netpol

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// NewClusterNetworkPolicy returns a policy of a tier whose subject is every pod, unless
// it has an On. Its rules are evaluated in the given order.
//
//	NewClusterNetworkPolicy("guests", v1alpha2.AdminTier, 10, On(Pods("pod=a").InNamespaces("ns=x")),
//		PassFrom(Namespaces("ns=y")),
//		DenyFrom(Namespaces("")).At(TCP(80), Named("", "web")))
func NewClusterNetworkPolicy(name string, tier v1alpha2.Tier, priority int32, parts ...AdminPart) *v1alpha2.ClusterNetworkPolicy {
	spec := newAdminSpec(parts)
	spec.Tier, spec.Priority = tier, priority
	return &v1alpha2.ClusterNetworkPolicy{
		TypeMeta:   typeMeta(v1alpha2.GroupVersion.String(), "ClusterNetworkPolicy"),
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       spec,
	}
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

// AdminPart is a part of the spec of an administrator's policy: its subject or a
// rule. All kinds take the same parts; here they have the types of v1alpha2.
type AdminPart interface {
	addTo(*v1alpha2.ClusterNetworkPolicySpec)
}

func newAdminSpec(parts []AdminPart) v1alpha2.ClusterNetworkPolicySpec {
	spec := v1alpha2.ClusterNetworkPolicySpec{Subject: v1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}}}
	for _, part := range parts {
		part.addTo(&spec)
	}
	return spec
}

// On restricts a policy to some pods: Pods of all namespaces, Pods InNamespaces, or
// Namespaces.
func On(subject Peer) AdminPart { return adminSubject(subject) }

type adminSubject Peer

func (s adminSubject) addTo(spec *v1alpha2.ClusterNetworkPolicySpec) {
	peer := Peer(s).adminPeer()
	if peer.Networks != nil {
		panic("netpol: a block cannot be a subject")
	}
	spec.Subject = v1alpha2.ClusterNetworkPolicySubject{Namespaces: peer.Namespaces, Pods: peer.Pods}
}

// AdminRule is one rule: an action for traffic from or to any of its peers, of which
// there must be one at least. Without At it matches traffic of every protocol.
type AdminRule struct {
	action  v1alpha2.ClusterNetworkPolicyRuleAction
	ingress bool
	peers   []v1alpha2.ClusterNetworkPolicyEgressPeer
	ports   []Port
}

// AllowFrom is a rule that allows ingress.
func AllowFrom(peers ...Peer) AdminRule {
	return from(v1alpha2.ClusterNetworkPolicyRuleActionAccept, peers)
}

// DenyFrom is a rule that denies ingress.
func DenyFrom(peers ...Peer) AdminRule {
	return from(v1alpha2.ClusterNetworkPolicyRuleActionDeny, peers)
}

// PassFrom is a rule that leaves ingress to the next tier.
func PassFrom(peers ...Peer) AdminRule {
	return from(v1alpha2.ClusterNetworkPolicyRuleActionPass, peers)
}

func from(action v1alpha2.ClusterNetworkPolicyRuleAction, peers []Peer) AdminRule {
	var sources []AdminPeer
	for _, p := range peers {
		if p.IPBlock != nil {
			panic("netpol: a block cannot be a source in an administrator's policy")
		}
		sources = append(sources, p)
	}
	r := to(action, sources)
	r.ingress = true
	return r
}

// AllowTo is a rule that allows egress.
func AllowTo(peers ...AdminPeer) AdminRule {
	return to(v1alpha2.ClusterNetworkPolicyRuleActionAccept, peers)
}

// DenyTo is a rule that denies egress.
func DenyTo(peers ...AdminPeer) AdminRule {
	return to(v1alpha2.ClusterNetworkPolicyRuleActionDeny, peers)
}

// PassTo is a rule that leaves egress to the next tier.
func PassTo(peers ...AdminPeer) AdminRule {
	return to(v1alpha2.ClusterNetworkPolicyRuleActionPass, peers)
}

func to(action v1alpha2.ClusterNetworkPolicyRuleAction, peers []AdminPeer) AdminRule {
	if len(peers) == 0 {
		panic("netpol: a rule of an administrator's policy needs a peer")
	}
	r := AdminRule{action: action}
	for _, p := range peers {
		r.peers = append(r.peers, p.adminPeer())
	}
	return r
}

// At returns the rule restricted to some ports. Traffic must match one of them. A Named
// port must have no protocol here, or At panics.
func (r AdminRule) At(ports ...Port) AdminRule {
	r.ports = ports
	return r
}

func (r AdminRule) addTo(spec *v1alpha2.ClusterNetworkPolicySpec) {
	var protocols []v1alpha2.ClusterNetworkPolicyProtocol
	for _, port := range r.ports {
		protocols = append(protocols, protocolV1alpha2(port.policyPort()))
	}
	if !r.ingress {
		spec.Egress = append(spec.Egress, v1alpha2.ClusterNetworkPolicyEgressRule{Action: r.action, To: r.peers, Protocols: protocols})
		return
	}
	rule := v1alpha2.ClusterNetworkPolicyIngressRule{Action: r.action, Protocols: protocols}
	for _, p := range r.peers {
		rule.From = append(rule.From, v1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
	}
	spec.Ingress = append(spec.Ingress, rule)
}

// AdminPeer is one destination of a rule: Networks, Nodes, DomainNames, or a Peer. Pods
// without InNamespaces are those of all namespaces, and a Block has no exceptions.
type AdminPeer interface {
	adminPeer() v1alpha2.ClusterNetworkPolicyEgressPeer
}

func (p Peer) adminPeer() v1alpha2.ClusterNetworkPolicyEgressPeer {
	switch {
	case p.IPBlock != nil && len(p.IPBlock.Except) > 0:
		panic("netpol: a block in an administrator's policy has no exceptions")
	case p.IPBlock != nil:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Networks: []v1alpha2.CIDR{v1alpha2.CIDR(p.IPBlock.CIDR)}}
	case p.PodSelector == nil:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.NamespaceSelector}
	}
	pods := &v1alpha2.NamespacedPod{PodSelector: *p.PodSelector}
	if p.NamespaceSelector != nil {
		pods.NamespaceSelector = *p.NamespaceSelector
	}
	return v1alpha2.ClusterNetworkPolicyEgressPeer{Pods: pods}
}

// adminPeer is an AdminPeer as the API has it.
type adminPeer v1alpha2.ClusterNetworkPolicyEgressPeer

func (p adminPeer) adminPeer() v1alpha2.ClusterNetworkPolicyEgressPeer {
	return v1alpha2.ClusterNetworkPolicyEgressPeer(p)
}

// Networks are the addresses in any of cidrs, as one peer.
func Networks(cidrs ...string) AdminPeer {
	return adminPeer{Networks: stringsAs[v1alpha2.CIDR](cidrs)}
}

// Nodes are the addresses of the nodes with these labels.
func Nodes(labels string) AdminPeer { return adminPeer{Nodes: selector(labels)} }

// DomainNames are the addresses that the pod has learned for any of these names.
func DomainNames(names ...string) AdminPeer {
	return adminPeer{DomainNames: stringsAs[v1alpha2.DomainName](names)}
}

// protocolV1alpha2 converts a port. All ports of a protocol are a range.
func protocolV1alpha2(p networkingv1.NetworkPolicyPort) v1alpha2.ClusterNetworkPolicyProtocol {
	if p.Port != nil && p.Port.Type == intstr.String {
		if p.Protocol != nil {
			panic(fmt.Sprintf("netpol: named port %s has a protocol, which an administrator's policy cannot express", p.Port.StrVal))
		}
		return v1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: p.Port.StrVal}
	}
	port := &v1alpha2.Port{}
	switch {
	case p.Port == nil:
		port.Range = &v1alpha2.PortRange{Start: 1, End: 65535}
	case p.EndPort != nil:
		port.Range = &v1alpha2.PortRange{Start: p.Port.IntVal, End: *p.EndPort}
	default:
		port.Number = p.Port.IntVal
	}
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	switch protocol {
	case corev1.ProtocolTCP:
		return v1alpha2.ClusterNetworkPolicyProtocol{TCP: &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}
	case corev1.ProtocolUDP:
		return v1alpha2.ClusterNetworkPolicyProtocol{UDP: &v1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}}
	case corev1.ProtocolSCTP:
		return v1alpha2.ClusterNetworkPolicyProtocol{SCTP: &v1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}}
	}
	panic(fmt.Sprintf("netpol: an administrator's policy cannot have ports of protocol %s", protocol))
}
