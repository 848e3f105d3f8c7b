package netpol

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// NewClusterNetworkPolicy returns a policy of a tier whose subject is every pod, unless
// it has an On. Its rules are evaluated in the given order.
//
//	NewClusterNetworkPolicy("guests", v1beta1.AdminTier, 10, On(Pods("pod=a").InNamespaces("ns=x")),
//		PassFrom(Namespaces("ns=y")),
//		DenyFrom(Namespaces("")).At(TCP(80), Named("", "web")))
func NewClusterNetworkPolicy(name string, tier v1beta1.Tier, priority int32, parts ...AdminPart) *v1beta1.ClusterNetworkPolicy {
	spec := newAdminSpec(parts)
	spec.Tier, spec.Priority = tier, priority
	return &v1beta1.ClusterNetworkPolicy{
		TypeMeta:   typeMeta(v1beta1.GroupVersion.String(), "ClusterNetworkPolicy"),
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       spec,
	}
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

// AdminPart is a part of the spec of an administrator's policy: its subject or a rule. All
// kinds are built from the same parts, which have the types of v1beta1 here.
type AdminPart interface {
	addTo(*v1beta1.ClusterNetworkPolicySpec)
}

func newAdminSpec(parts []AdminPart) v1beta1.ClusterNetworkPolicySpec {
	spec := v1beta1.ClusterNetworkPolicySpec{Subject: v1beta1.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}}}
	for _, part := range parts {
		part.addTo(&spec)
	}
	return spec
}

// On restricts a policy to some pods: Pods of all namespaces, Pods InNamespaces, or
// Namespaces.
func On(subject Peer) AdminPart { return adminSubject(subject) }

type adminSubject Peer

func (s adminSubject) addTo(spec *v1beta1.ClusterNetworkPolicySpec) {
	peer := Peer(s).adminPeer()
	if peer.Networks != nil {
		panic("netpol: a block cannot be a subject")
	}
	spec.Subject = v1beta1.ClusterNetworkPolicySubject{Namespaces: peer.Namespaces, Pods: peer.Pods}
}

// AdminRule is one rule: an action for traffic from or to any of its peers. It needs at
// least one peer. Without At it matches traffic of every protocol.
type AdminRule struct {
	action  v1beta1.ClusterNetworkPolicyRuleAction
	ingress bool
	peers   []v1beta1.ClusterNetworkPolicyEgressPeer
	ports   []Port
}

// AllowFrom returns a rule that allows ingress.
func AllowFrom(peers ...Peer) AdminRule {
	return from(v1beta1.ClusterNetworkPolicyRuleActionAccept, peers)
}

// DenyFrom returns a rule that denies ingress.
func DenyFrom(peers ...Peer) AdminRule {
	return from(v1beta1.ClusterNetworkPolicyRuleActionDeny, peers)
}

// PassFrom returns a rule that leaves ingress to the next tier.
func PassFrom(peers ...Peer) AdminRule {
	return from(v1beta1.ClusterNetworkPolicyRuleActionPass, peers)
}

func from(action v1beta1.ClusterNetworkPolicyRuleAction, peers []Peer) AdminRule {
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

// AllowTo returns a rule that allows egress.
func AllowTo(peers ...AdminPeer) AdminRule {
	return to(v1beta1.ClusterNetworkPolicyRuleActionAccept, peers)
}

// DenyTo returns a rule that denies egress.
func DenyTo(peers ...AdminPeer) AdminRule {
	return to(v1beta1.ClusterNetworkPolicyRuleActionDeny, peers)
}

// PassTo returns a rule that leaves egress to the next tier.
func PassTo(peers ...AdminPeer) AdminRule {
	return to(v1beta1.ClusterNetworkPolicyRuleActionPass, peers)
}

func to(action v1beta1.ClusterNetworkPolicyRuleAction, peers []AdminPeer) AdminRule {
	if len(peers) == 0 {
		panic("netpol: a rule of an administrator's policy needs a peer")
	}
	r := AdminRule{action: action}
	for _, p := range peers {
		r.peers = append(r.peers, p.adminPeer())
	}
	return r
}

// At returns the rule restricted to some ports. Traffic must match one of them. At panics
// for a Named port with a protocol, which this API cannot express.
func (r AdminRule) At(ports ...Port) AdminRule {
	r.ports = ports
	return r
}

func (r AdminRule) addTo(spec *v1beta1.ClusterNetworkPolicySpec) {
	var protocols []v1beta1.ClusterNetworkPolicyProtocol
	for _, port := range r.ports {
		protocols = append(protocols, protocolV1beta1(port.policyPort()))
	}
	if !r.ingress {
		spec.Egress = append(spec.Egress, v1beta1.ClusterNetworkPolicyEgressRule{Action: r.action, To: r.peers, Protocols: protocols})
		return
	}
	rule := v1beta1.ClusterNetworkPolicyIngressRule{Action: r.action, Protocols: protocols}
	for _, p := range r.peers {
		rule.From = append(rule.From, v1beta1.ClusterNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
	}
	spec.Ingress = append(spec.Ingress, rule)
}

// AdminPeer is one destination of a rule: Networks, Nodes, DomainNames, or a Peer. Pods
// without InNamespaces are those of all namespaces. A Block must have no exceptions.
type AdminPeer interface {
	adminPeer() v1beta1.ClusterNetworkPolicyEgressPeer
}

func (p Peer) adminPeer() v1beta1.ClusterNetworkPolicyEgressPeer {
	switch {
	case p.IPBlock != nil && len(p.IPBlock.Except) > 0:
		panic("netpol: a block in an administrator's policy has no exceptions")
	case p.IPBlock != nil:
		return v1beta1.ClusterNetworkPolicyEgressPeer{Networks: []v1beta1.CIDR{v1beta1.CIDR(p.IPBlock.CIDR)}}
	case p.PodSelector == nil:
		return v1beta1.ClusterNetworkPolicyEgressPeer{Namespaces: p.NamespaceSelector}
	}
	pods := &v1beta1.NamespacedPod{PodSelector: *p.PodSelector}
	if p.NamespaceSelector != nil {
		pods.NamespaceSelector = *p.NamespaceSelector
	}
	return v1beta1.ClusterNetworkPolicyEgressPeer{Pods: pods}
}

// adminPeer is an AdminPeer in the form of the API.
type adminPeer v1beta1.ClusterNetworkPolicyEgressPeer

func (p adminPeer) adminPeer() v1beta1.ClusterNetworkPolicyEgressPeer {
	return v1beta1.ClusterNetworkPolicyEgressPeer(p)
}

// Networks are the addresses in any of cidrs, as one peer.
func Networks(cidrs ...string) AdminPeer {
	return adminPeer{Networks: stringsAs[v1beta1.CIDR](cidrs)}
}

// Nodes are the addresses of the nodes with these labels.
func Nodes(labels string) AdminPeer { return adminPeer{Nodes: selector(labels)} }

// DomainNames are the addresses that the pod has resolved from any of these names.
func DomainNames(names ...string) AdminPeer {
	return adminPeer{DomainNames: stringsAs[v1beta1.DomainName](names)}
}

// protocolV1beta1 converts a port. All ports of a protocol become a range.
func protocolV1beta1(p networkingv1.NetworkPolicyPort) v1beta1.ClusterNetworkPolicyProtocol {
	if p.Port != nil && p.Port.Type == intstr.String {
		if p.Protocol != nil {
			panic(fmt.Sprintf("netpol: named port %s has a protocol, which an administrator's policy cannot express", p.Port.StrVal))
		}
		return v1beta1.ClusterNetworkPolicyProtocol{DestinationNamedPort: p.Port.StrVal}
	}
	port := &v1beta1.Port{}
	switch {
	case p.Port == nil:
		port.Range = &v1beta1.PortRange{Start: 1, End: 65535}
	case p.EndPort != nil:
		port.Range = &v1beta1.PortRange{Start: p.Port.IntVal, End: *p.EndPort}
	default:
		port.Number = p.Port.IntVal
	}
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	switch protocol {
	case corev1.ProtocolTCP:
		return v1beta1.ClusterNetworkPolicyProtocol{TCP: &v1beta1.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}
	case corev1.ProtocolUDP:
		return v1beta1.ClusterNetworkPolicyProtocol{UDP: &v1beta1.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}}
	case corev1.ProtocolSCTP:
		return v1beta1.ClusterNetworkPolicyProtocol{SCTP: &v1beta1.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}}
	}
	panic(fmt.Sprintf("netpol: an administrator's policy cannot have ports of protocol %s", protocol))
}
