package netpol

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NewPolicy returns a policy that selects every pod of its namespace, unless it has a
// Subject. Its policy types follow from its parts: Ingress and DenyIngress, Egress and
// DenyEgress.
//
//	NewPolicy("x", "web-from-front-or-y", Subject("pod=a"),
//		Ingress(From(Pods("pod=b"), Namespaces("ns=y")), At(TCP(80))))
//
// Label selectors have the syntax of kubectl without "!=": "pod in (a,b), !old, tier notin
// (db)". An invalid selector panics.
func NewPolicy(namespace, name string, parts ...Part) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}
	for _, part := range parts {
		part(&policy.Spec)
	}
	return policy
}

// Part is a part of a policy's spec.
type Part func(*networkingv1.NetworkPolicySpec)

// Subject restricts the policy to pods with these labels.
func Subject(labels string) Part {
	return func(spec *networkingv1.NetworkPolicySpec) { spec.PodSelector = *selector(labels) }
}

// DenyIngress isolates the subject for ingress without a rule.
func DenyIngress() Part { return withType(networkingv1.PolicyTypeIngress) }

// DenyEgress isolates the subject for egress without a rule.
func DenyEgress() Part { return withType(networkingv1.PolicyTypeEgress) }

func withType(t networkingv1.PolicyType) Part {
	return func(spec *networkingv1.NetworkPolicySpec) {
		for _, has := range spec.PolicyTypes {
			if has == t {
				return
			}
		}
		spec.PolicyTypes = append(spec.PolicyTypes, t)
	}
}

// Types overwrites the policy types that earlier parts have set.
func Types(types ...networkingv1.PolicyType) Part {
	return func(spec *networkingv1.NetworkPolicySpec) { spec.PolicyTypes = types }
}

// Ingress isolates the subject for ingress and adds one rule. Without From the rule
// allows every source, without At every port.
func Ingress(parts ...RulePart) Part {
	return func(spec *networkingv1.NetworkPolicySpec) {
		DenyIngress()(spec)
		r := newRule(parts)
		spec.Ingress = append(spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: r.peers, Ports: r.ports})
	}
}

// Egress isolates the subject for egress and adds one rule. Without To the rule allows
// every destination, without At every port.
func Egress(parts ...RulePart) Part {
	return func(spec *networkingv1.NetworkPolicySpec) {
		DenyEgress()(spec)
		r := newRule(parts)
		spec.Egress = append(spec.Egress, networkingv1.NetworkPolicyEgressRule{To: r.peers, Ports: r.ports})
	}
}

// rule is a rule of either direction.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func newRule(parts []RulePart) rule {
	var r rule
	for _, part := range parts {
		part(&r)
	}
	return r
}

// RulePart is a part of a rule: its peers or its ports.
type RulePart func(*rule)

// From sets the peers of an ingress rule. Traffic must match one of them.
func From(peers ...Peer) RulePart {
	return func(r *rule) {
		for _, peer := range peers {
			r.peers = append(r.peers, networkingv1.NetworkPolicyPeer(peer))
		}
	}
}

// To sets the peers of an egress rule. Traffic must match one of them.
func To(peers ...Peer) RulePart { return From(peers...) }

// At sets the ports of a rule. Traffic must match one of them.
func At(ports ...Port) RulePart {
	return func(r *rule) {
		for _, port := range ports {
			r.ports = append(r.ports, port.policyPort())
		}
	}
}

// Peer is one item of a from or to list. Methods such as InNamespaces restrict it further.
// Alternatives are several peers.
type Peer networkingv1.NetworkPolicyPeer

// Pods are the pods with these labels in the policy's own namespace.
func Pods(labels string) Peer { return Peer{PodSelector: selector(labels)} }

// InNamespaces returns the pods of p in the namespaces with these labels, instead of the
// policy's own namespace.
func (p Peer) InNamespaces(labels string) Peer {
	p.NamespaceSelector = selector(labels)
	return p
}

// Namespaces are all pods in the namespaces with these labels.
func Namespaces(labels string) Peer { return Peer{NamespaceSelector: selector(labels)} }

// Block is the addresses in cidr.
func Block(cidr string) Peer { return Peer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}} }

// Except returns the block without the addresses in cidrs.
func (p Peer) Except(cidrs ...string) Peer {
	p.IPBlock = &networkingv1.IPBlock{CIDR: p.IPBlock.CIDR, Except: cidrs}
	return p
}

// Blocks returns a peer for each of cidrs.
func Blocks(cidrs ...string) []Peer {
	var peers []Peer
	for _, cidr := range cidrs {
		peers = append(peers, Block(cidr))
	}
	return peers
}

// Port is one item of a rule's port list: a Traffic, whose port 0 means every port of the
// protocol, a Range or a Named port. An empty protocol is omitted from the policy, which
// makes it TCP.
type Port interface {
	policyPort() networkingv1.NetworkPolicyPort
}

// portItem is a Port in the form of the API.
type portItem networkingv1.NetworkPolicyPort

func (p portItem) policyPort() networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort(p)
}

func (t Traffic) policyPort() networkingv1.NetworkPolicyPort {
	port := networkingv1.NetworkPolicyPort{Protocol: protocol(t.Protocol)}
	if t.Port != 0 {
		port.Port = new(intstr.FromInt32(t.Port))
	}
	return port
}

// Range returns the ports first to last, both included.
func Range(p corev1.Protocol, first, last int32) Port {
	return portItem{Protocol: protocol(p), Port: new(intstr.FromInt32(first)), EndPort: &last}
}

// Named returns the port that the destination pod declares by that name.
func Named(p corev1.Protocol, name string) Port {
	return portItem{Protocol: protocol(p), Port: new(intstr.FromString(name))}
}

func protocol(p corev1.Protocol) *corev1.Protocol {
	if p == "" {
		return nil
	}
	return &p
}

// selector parses labels in the syntax of kubectl.
func selector(labels string) *metav1.LabelSelector {
	s, err := metav1.ParseToLabelSelector(labels)
	if err != nil {
		panic("netpol: label selector " + labels + ": " + err.Error())
	}
	return s
}
