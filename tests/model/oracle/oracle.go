// Package oracle decides what NetworkPolicy and administrators' policies (AdminNetworkPolicy,
// BaselineAdminNetworkPolicy, ClusterNetworkPolicy) mean for one packet on one node, slowly and
// obviously: it reads the API objects again for every packet, keeps no state between calls, and has
// one function per statement of docs/semantics.md, with the statement's number in its comment.
//
// It is an independent reading of the specification, to compare the real evaluator with. So it must
// not know the real evaluator: nothing here imports pkg/engine/compile or pkg/engine/policy.
//
// Packets from the node itself (NP-31 to NP-33), replies (NP-37, CN-18), related errors (NP-38) and
// neighbour discovery (NP-41) are handled by nftables rules and never reach an evaluator, so the
// oracle has no answer for them.
package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// Cluster is everything known about a cluster: the objects as listed by the API server, in any
// order. The oracle never modifies them.
type Cluster struct {
	Namespaces      []*corev1.Namespace
	Pods            []*corev1.Pod
	Nodes           []*corev1.Node
	NetworkPolicies []*networkingv1.NetworkPolicy
	CIDRGroups      []*proposed.CIDRGroup

	AdminNetworkPolicies         []*v1alpha1.AdminNetworkPolicy
	BaselineAdminNetworkPolicies []*v1alpha1.BaselineAdminNetworkPolicy
	ClusterNetworkPolicies       []*proposed.ClusterNetworkPolicy

	// Sandboxes are the networks that the evaluating node has made for pods, newest first. They may
	// include those of deleted pods.
	Sandboxes []Sandbox
	// Elsewhere are the addresses that the evaluating node routes to where none of its pods is.
	Elsewhere map[netip.Addr]bool
	node      string // the node that evaluates
	// assumed says who has an address for which that is not certain.
	assumed map[netip.Addr]occupant

	// The feature gates. Disabled features are treated as unreadable. EndPort applies to
	// NetworkPolicy only, NodePeers and DomainNames to administrators' policies.
	EndPort, SCTP, NodePeers, DomainNames bool
	// The gates of proposals. IngressByAddress is for NPEP-127, ServiceAccounts for NPEP-173, GroupPeers
	// for NPEP-182, MatchAll for NPEP-248.
	IngressByAddress, ServiceAccounts, GroupPeers, MatchAll bool
}

// Sandbox is the network that a node has made for a pod.
type Sandbox struct {
	Namespace, Name string
	UID             types.UID
	Addrs           []netip.Addr
	Proven          bool // routes show that it has the addresses
}

// Add adds an object. It panics if a cluster has no objects of the kind.
func (c *Cluster) Add(o metav1.Object) {
	switch o := o.(type) {
	case *corev1.Namespace:
		c.Namespaces = append(c.Namespaces, o)
	case *corev1.Pod:
		c.Pods = append(c.Pods, o)
	case *corev1.Node:
		c.Nodes = append(c.Nodes, o)
	case *proposed.CIDRGroup:
		c.CIDRGroups = append(c.CIDRGroups, o)
	case *networkingv1.NetworkPolicy:
		c.NetworkPolicies = append(c.NetworkPolicies, o)
	case *v1alpha1.AdminNetworkPolicy:
		c.AdminNetworkPolicies = append(c.AdminNetworkPolicies, o)
	case *v1alpha1.BaselineAdminNetworkPolicy:
		c.BaselineAdminNetworkPolicies = append(c.BaselineAdminNetworkPolicies, o)
	case *proposed.ClusterNetworkPolicy:
		c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, o)
	default:
		panic(fmt.Sprintf("oracle: a cluster has no %T", o))
	}
}

// Query is a packet and what else is known about it.
type Query struct {
	Packet packet.Packet
	// ToHost reports whether the destination is the evaluating node itself.
	ToHost bool
	// Names are the domain names that the sending pod has learned for addresses, in lower case
	// without the trailing dot.
	Names map[netip.Addr][]string
}

// peer returns the address of the peer in a direction.
func (q Query) peer(dir networkingv1.PolicyType) netip.Addr {
	if dir == networkingv1.PolicyTypeEgress {
		return q.Packet.Dst.Addr()
	}
	return q.Packet.Src.Addr()
}

// subject returns the address of the subject in a direction.
func (q Query) subject(dir networkingv1.PolicyType) netip.Addr {
	if dir == networkingv1.PolicyTypeEgress {
		return q.Packet.Src.Addr()
	}
	return q.Packet.Dst.Addr()
}

// Outcome is a node's answer for one direction of a packet.
type Outcome uint8

const (
	// Denied means that policy forbids the packet.
	Denied Outcome = iota
	// Allowed means that policy was evaluated and permits the packet.
	Allowed
	// NotEnforced means that this node enforces nothing: the packet does not leave
	// (egress) or reach (ingress) a pod of the node.
	NotEnforced
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	return [...]string{"denied", "allowed", "not evaluated"}[o]
}

// DirectionDecision is the outcome of one direction, and the reason as text.
type DirectionDecision struct {
	Outcome Outcome
	Why     string
}

// Decision holds both directions of a packet, which are decided independently.
type Decision struct {
	Egress, Ingress DirectionDecision
}

// Allowed reports whether the node lets the packet pass.
//
// NP-3: a packet passes if the source may send and the destination may receive.
func (d Decision) Allowed() bool {
	return d.Egress.Outcome != Denied && d.Ingress.Outcome != Denied
}

// String returns both directions as text.
func (d Decision) String() string {
	verdict := "denied"
	if d.Allowed() {
		verdict = "allowed"
	}
	return fmt.Sprintf("%s (egress %v: %s; ingress %v: %s)", verdict,
		d.Egress.Outcome, d.Egress.Why, d.Ingress.Outcome, d.Ingress.Why)
}

// Evaluate decides what the node called node does with a packet.
func Evaluate(c Cluster, node string, q Query) Decision {
	c.node = node
	return Decision{
		Egress:  c.evaluateEach(node, q, networkingv1.PolicyTypeEgress),
		Ingress: c.evaluateEach(node, q, networkingv1.PolicyTypeIngress),
	}
}

// evaluateEach decides one direction for each pod that the peer may be.
//
// NP-63: the packet is denied if it is denied for any of them.
func (c Cluster) evaluateEach(node string, q Query, dir networkingv1.PolicyType) DirectionDecision {
	peer := q.peer(dir)
	all := c.occupants(peer.Unmap())
	if len(all) < 2 || q.ToHost {
		return c.evaluate(node, q, dir)
	}
	decisions := each(all, func(o occupant) DirectionDecision { return c.assuming(peer, o).evaluate(node, q, dir) })
	if i := slices.IndexFunc(decisions, func(d DirectionDecision) bool { return d.Outcome == Denied }); i >= 0 {
		return decisions[i]
	}
	return decisions[0]
}

// EvaluateLate reports whether the node accepts a packet that does not open its connection.
//
// NP-65: its ends may have opened the connection either way, so both ways must be allowed. The
// node itself may connect to its pods (NP-31).
func EvaluateLate(c Cluster, node string, q Query) bool {
	swapped := Query{Packet: packet.Packet{Src: q.Packet.Dst, Dst: q.Packet.Src, Proto: q.Packet.Proto}, Names: q.Names}
	return Evaluate(c, node, q).Allowed() && (q.ToHost || Evaluate(c, node, swapped).Allowed())
}

// evaluate decides one direction: egress for the pod that sends, ingress for the pod that receives.
//
// NP-35 and NP-46: policies are evaluated only on the node of the pod, and only for pods. The node
// itself is not a pod.
func (c Cluster) evaluate(node string, q Query, dir networkingv1.PolicyType) DirectionDecision {
	if q.ToHost && dir == networkingv1.PolicyTypeIngress {
		return DirectionDecision{NotEnforced, "the destination is the node"}
	}
	subject := q.subject(dir)
	pod := c.podAt(subject)
	switch {
	case pod == nil && c.unknownLocal(node, subject) && c.mayBeDenied(q, dir):
		return DirectionDecision{Denied, fmt.Sprintf("Unknown: no known pod has the local address %v", subject)}
	case pod == nil:
		return DirectionDecision{NotEnforced, fmt.Sprintf("%v is no pod", subject)}
	case pod.Spec.NodeName != node:
		return DirectionDecision{NotEnforced, fmt.Sprintf("pod %s/%s runs elsewhere", pod.Namespace, pod.Name)}
	case !q.ToHost && c.unknownPeer(node, q, dir) && c.mayBeDenied(q, dir) && c.dependsOnPeer(pod, q, dir):
		return DirectionDecision{Denied, fmt.Sprintf("Unknown: no known pod is the peer %v", q.peer(dir))}
	}
	return c.evaluatePod(pod, q, dir)
}

// mayBeDenied: NP-55, whether the packet of a pod that is not known yet might be denied. Nothing is
// known about the pod, so every policy counts, except NetworkPolicies for traffic to its own node
// (NP-31). CN-35: its packets might also be denied by the receiving node, which does not know it
// either.
func (c Cluster) mayBeDenied(q Query, dir networkingv1.PolicyType) bool {
	if c.anyRuleDenies(dir) {
		return true
	}
	return !q.ToHost && (c.anyPolicyIsolates(dir) ||
		dir == networkingv1.PolicyTypeEgress && c.anyRuleDenies(networkingv1.PolicyTypeIngress))
}

// evaluatePod decides one direction of a packet for a pod of this node.
//
// CN-1: the tiers are evaluated in order. A packet that none decides is allowed. NP-44: if a tier
// has several possible answers, because the packet's ports are unreadable, the packet is denied if
// any of them denies it.
func (c Cluster) evaluatePod(pod *corev1.Pod, q Query, dir networkingv1.PolicyType) DirectionDecision {
	tiers := [][]answer{
		c.evaluateAdministrators(adminTier, pod, q, dir),
		c.evaluateNetworkPolicies(pod, q, dir),
		c.evaluateAdministrators(baselineTier, pod, q, dir),
	}
	for _, answers := range tiers {
		if i := slices.IndexFunc(answers, func(a answer) bool { return a.decided && a.Outcome == Denied }); i >= 0 {
			return answers[i].DirectionDecision
		}
		if !slices.Contains(answers, undecided) {
			return answers[0].DirectionDecision
		}
	}
	return DirectionDecision{Allowed, fmt.Sprintf("no policy denies it to pod %s/%s", pod.Namespace, pod.Name)}
}

// answer is the result of a tier: a decision, or that the next tier decides.
type answer struct {
	DirectionDecision
	decided bool
}

var undecided = answer{}

// evaluateNetworkPolicies evaluates the NetworkPolicy tier. It decides for isolated pods only
// (CN-5).
//
// NP-2: policies and rules are a union: one match is enough. NP-7: without a match, an isolated pod
// is denied. Traffic that NetworkPolicy always allows is allowed for isolated pods, too.
func (c Cluster) evaluateNetworkPolicies(pod *corev1.Pod, q Query, dir networkingv1.PolicyType) []answer {
	decide := func(o Outcome, why string, args ...any) []answer {
		return []answer{{DirectionDecision{o, fmt.Sprintf(why, args...)}, true}}
	}
	if !c.isolated(pod, dir) {
		return []answer{undecided}
	}
	if c.hairpin(q) || q.ToHost {
		return decide(Allowed, "NetworkPolicy always allows a pod's packet to itself and to its node")
	}
	for _, policy := range c.NetworkPolicies {
		if !isolates(policy, pod, dir) {
			continue
		}
		for i, rule := range rulesOf(policy, dir) {
			if c.ruleMatches(policy, rule, q, dir) {
				return decide(Allowed, "policy %s/%s, rule %d", policy.Namespace, policy.Name, i)
			}
		}
	}
	return decide(Denied, "pod %s/%s is isolated and no rule matches", pod.Namespace, pod.Name)
}

// hairpin: NP-30 and CN-19. NetworkPolicy cannot block a pod from itself, but an administrator can:
// such a packet has left the pod and gone through a Service.
func (c Cluster) hairpin(q Query) bool {
	src, dst := c.podAt(q.Packet.Src.Addr()), c.podAt(q.Packet.Dst.Addr())
	return src != nil && src == dst
}

// OwnerOf returns the pod that an address belongs to, as a node sees it, or nil.
func OwnerOf(c Cluster, node string, addr netip.Addr) *corev1.Pod {
	c.node = node
	return c.podAt(addr)
}

// SelectedAddresses returns the addresses on a node whose policies in one direction must be
// evaluated, in order.
func SelectedAddresses(c Cluster, node string, dir networkingv1.PolicyType) []netip.Addr {
	return c.localAddresses(node, func(pod *corev1.Pod) bool {
		return c.isolated(pod, dir) || len(c.rulesFor(pod, dir)) > 0
	})
}

// SelectedToHost returns the addresses on a node whose policies must be evaluated when they send to
// the node itself, in order.
func SelectedToHost(c Cluster, node string) []netip.Addr {
	return c.localAddresses(node, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(c.rulesFor(pod, networkingv1.PolicyTypeEgress), c.mayDenyHosts)
	})
}

// SelectedForNames returns the addresses of the pods on a node that some rule allows to reach
// domain names, in order.
func SelectedForNames(c Cluster, node string) []netip.Addr {
	return c.localAddresses(node, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(c.rulesFor(pod, networkingv1.PolicyTypeEgress), c.allowsNames)
	})
}

// localAddresses returns the addresses of the chosen pods on a node.
func (c Cluster) localAddresses(node string, chosen func(*corev1.Pod) bool) []netip.Addr {
	c.node = node
	var local []netip.Addr
	for _, addr := range c.podAddresses() {
		if pod := c.podAt(addr); pod != nil && pod.Spec.NodeName == node && chosen(pod) {
			local = append(local, addr)
		}
	}
	return local
}
