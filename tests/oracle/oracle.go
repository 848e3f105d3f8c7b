// Package oracle says what NetworkPolicy means for one packet on one node,
// slowly and obviously: it reads the API objects anew for every packet, keeps
// nothing between two calls, and has one function per statement of
// docs/semantics.md, whose number stands above it.
//
// It owns an independent reading of the specification, for the real evaluator
// to be compared with. It refuses to know the real evaluator and its model:
// nothing here imports pkg/compile or pkg/policy.
//
// Traffic that the node itself sends or receives (NP-31 to NP-33, own node) is
// settled by the packet filter's rules and never reaches an evaluator, so the
// oracle has no answer for it. Replies (NP-37), related errors (NP-38) and
// neighbour discovery (NP-41) are settled there as well.
package oracle

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// Cluster is all that is known of a cluster: the objects as the API server
// would list them, in any order. The oracle never modifies them.
type Cluster struct {
	Namespaces      []*corev1.Namespace
	Pods            []*corev1.Pod
	Nodes           []*corev1.Node
	NetworkPolicies []*networkingv1.NetworkPolicy

	// EndPort and SCTP are the feature gates. What is switched off matches
	// nothing.
	EndPort, SCTP bool
}

// Outcome is what a node has to say about one direction of a packet.
type Outcome uint8

const (
	// Denied means that policy forbids the packet.
	Denied Outcome = iota
	// Allowed means that policy was asked and permits the packet.
	Allowed
	// NotJudged means that this node has no say: the packet does not leave
	// (egress) or reach (ingress) a pod of the node.
	NotJudged
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	return [...]string{"denied", "allowed", "not judged"}[o]
}

// Judgement is the outcome of one direction, and the reason in words.
type Judgement struct {
	Outcome Outcome
	Why     string
}

// Decision holds both directions of a packet. They are independent: each is
// judged whatever the other one says.
type Decision struct {
	Egress, Ingress Judgement
}

// Allowed reports whether the node lets the packet pass.
//
// NP-3: a packet passes if the source may send and the destination may receive.
func (d Decision) Allowed() bool {
	return d.Egress.Outcome != Denied && d.Ingress.Outcome != Denied
}

// String returns both judgements in words.
func (d Decision) String() string {
	verdict := "denied"
	if d.Allowed() {
		verdict = "allowed"
	}
	return fmt.Sprintf("%s (egress %v: %s; ingress %v: %s)", verdict,
		d.Egress.Outcome, d.Egress.Why, d.Ingress.Outcome, d.Ingress.Why)
}

// Judge decides what the node called node does with a packet.
func Judge(c Cluster, node string, p packet.Packet) Decision {
	if c.hairpin(p) {
		j := Judgement{Allowed, "a pod's packet to itself"}
		return Decision{Egress: j, Ingress: j}
	}
	return Decision{
		Egress:  c.judge(node, p, networkingv1.PolicyTypeEgress),
		Ingress: c.judge(node, p, networkingv1.PolicyTypeIngress),
	}
}

// hairpin: NP-30. A pod cannot block itself.
func (c Cluster) hairpin(p packet.Packet) bool {
	src, dst := c.podAt(p.Src.Addr()), c.podAt(p.Dst.Addr())
	return src != nil && src == dst
}

// judge decides one direction. Egress is judged for the pod that sends, ingress
// for the pod that receives.
//
// NP-35 and NP-46: each only on the node where that pod runs, and what is no
// pod of this node is not judged.
func (c Cluster) judge(node string, p packet.Packet, dir networkingv1.PolicyType) Judgement {
	subject := p.Dst.Addr()
	if dir == networkingv1.PolicyTypeEgress {
		subject = p.Src.Addr()
	}
	pod := c.podAt(subject)
	if pod == nil && c.unknownLocal(node, subject) && c.anyPolicyIsolates(dir) {
		return Judgement{Denied, fmt.Sprintf("Unknown: nobody knows the local address %v", subject)}
	}
	if pod == nil {
		return Judgement{NotJudged, fmt.Sprintf("%v is no pod", subject)}
	}
	if pod.Spec.NodeName != node {
		return Judgement{NotJudged, fmt.Sprintf("pod %s/%s runs elsewhere", pod.Namespace, pod.Name)}
	}
	return c.judgePod(pod, p, dir)
}

// judgePod decides one direction of a packet for a pod of this node.
//
// NP-2: policies and rules are a union, and one that matches is enough. NP-7:
// without any, an isolated pod gets nothing.
func (c Cluster) judgePod(pod *corev1.Pod, p packet.Packet, dir networkingv1.PolicyType) Judgement {
	if !c.isolated(pod, dir) {
		return Judgement{Allowed, fmt.Sprintf("pod %s/%s is not isolated", pod.Namespace, pod.Name)}
	}
	for _, policy := range c.NetworkPolicies {
		if !isolates(policy, pod, dir) {
			continue
		}
		for i, rule := range rulesOf(policy, dir) {
			if c.ruleMatches(policy, rule, p, dir) {
				return Judgement{Allowed, fmt.Sprintf("policy %s/%s, rule %d", policy.Namespace, policy.Name, i)}
			}
		}
	}
	return Judgement{Denied, fmt.Sprintf("pod %s/%s is isolated and no rule matches", pod.Namespace, pod.Name)}
}

// IsolatedAddresses lists the addresses on a node for which policy of one
// direction has to be asked, ordered.
func IsolatedAddresses(c Cluster, node string, dir networkingv1.PolicyType) []netip.Addr {
	var isolated []netip.Addr
	for _, addr := range c.podAddresses() {
		pod := c.podAt(addr)
		if pod.Spec.NodeName == node && c.isolated(pod, dir) {
			isolated = append(isolated, addr)
		}
	}
	return isolated
}
