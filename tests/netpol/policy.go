package netpol

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NewPolicy returns a policy that selects every pod of its namespace, unless
// Subject says otherwise. Its policy types are what its parts say: Ingress and
// DenyIngress, Egress and DenyEgress.
//
//	NewPolicy("x", "web-from-front-or-y", Subject("pod=a"),
//		Ingress(From(Pods("pod=b"), Namespaces("ns=y")), At(TCP(80))))
//
// Label selectors are written as for kubectl, without "!=": "pod in (a,b), !old,
// tier notin (db)". One that cannot be read panics.
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

// DenyIngress isolates the subject: nothing comes in but what a rule lets in.
func DenyIngress() Part { return withType(networkingv1.PolicyTypeIngress) }

// DenyEgress isolates the subject: nothing goes out but what a rule lets out.
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

// Types overwrites the policy types that the parts before it have made, with none
// if none are given.
func Types(types ...networkingv1.PolicyType) Part {
	return func(spec *networkingv1.NetworkPolicySpec) { spec.PolicyTypes = types }
}

// Ingress isolates the subject and adds one rule that lets in. Without From it is
// from anyone, without At it is everything.
func Ingress(parts ...RulePart) Part {
	return func(spec *networkingv1.NetworkPolicySpec) {
		DenyIngress()(spec)
		r := newRule(parts)
		spec.Ingress = append(spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: r.peers, Ports: r.ports})
	}
}

// Egress isolates the subject and adds one rule that lets out. Without To it is to
// anyone, without At it is everything.
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

// From gives an ingress rule its peers: any one of them is enough.
func From(peers ...Peer) RulePart {
	return func(r *rule) {
		for _, peer := range peers {
			r.peers = append(r.peers, networkingv1.NetworkPolicyPeer(peer))
		}
	}
}

// To gives an egress rule its peers: any one of them is enough.
func To(peers ...Peer) RulePart { return From(peers...) }

// At gives a rule its ports: any one of them is enough.
func At(ports ...Port) RulePart {
	return func(r *rule) {
		for _, port := range ports {
			r.ports = append(r.ports, port.policyPort())
		}
	}
}

// Peer is one item of a from or to list. A peer is one sentence: what a method
// adds to it must hold too. Alternatives are several peers.
type Peer networkingv1.NetworkPolicyPeer

// Pods are the pods with these labels in the policy's own namespace.
func Pods(labels string) Peer { return Peer{PodSelector: selector(labels)} }

// InNamespaces returns the pods of p in the namespaces with these labels, instead
// of those in the policy's own.
func (p Peer) InNamespaces(labels string) Peer {
	p.NamespaceSelector = selector(labels)
	return p
}

// Namespaces are all pods in the namespaces with these labels.
func Namespaces(labels string) Peer { return Peer{NamespaceSelector: selector(labels)} }

// Block are the addresses in cidr.
func Block(cidr string) Peer { return Peer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}} }

// Except returns the addresses of a block that are in none of cidrs.
func (p Peer) Except(cidrs ...string) Peer {
	p.IPBlock = &networkingv1.IPBlock{CIDR: p.IPBlock.CIDR, Except: cidrs}
	return p
}

// Blocks is one peer for each of cidrs.
func Blocks(cidrs ...string) []Peer {
	var peers []Peer
	for _, cidr := range cidrs {
		peers = append(peers, Block(cidr))
	}
	return peers
}

// Port is one item of a rule's port list: a Traffic, of which port 0 is every port
// of the protocol, a Range or a Named port. An empty protocol is left out of the
// policy, which makes it TCP.
type Port interface {
	policyPort() networkingv1.NetworkPolicyPort
}

// portItem is a Port as the API has it.
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

// selector reads labels as kubectl does.
func selector(labels string) *metav1.LabelSelector {
	s, err := metav1.ParseToLabelSelector(labels)
	if err != nil {
		panic("netpol: label selector " + labels + ": " + err.Error())
	}
	return s
}
