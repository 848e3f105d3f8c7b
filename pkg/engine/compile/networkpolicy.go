package compile

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const networkPolicyPortsField = "ports"

// KindNetworkPolicy is version v1 of the group networking.k8s.io.
var KindNetworkPolicy = policyKind(Kind{
	Name:       "NetworkPolicy",
	Resource:   networkingv1.SchemeGroupVersion.WithResource("networkpolicies"),
	Namespaced: true,
	Tiers:      []policy.Tier{policy.NetworkPolicyTier},
	PortsField: networkPolicyPortsField,
	Docs:       "docs/semantics.md#isolation-and-defaults",
}, func(m metav1.ObjectMeta, o *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, compileNetworkPolicy)

func compileNetworkPolicy(d *diagnosis, o *networkingv1.NetworkPolicy) *Policy {
	return (&networkPolicyCompiler{d}).compile(o)
}

// networkPolicyCompiler compiles one policy and collects its findings.
type networkPolicyCompiler struct {
	*diagnosis
}

func (c *networkPolicyCompiler) compile(o *networkingv1.NetworkPolicy) *Policy {
	p := &Policy{spec: &o.Spec, Tier: policy.NetworkPolicyTier}
	subject, err := metav1.LabelSelectorAsSelector(&o.Spec.PodSelector)
	if err != nil {
		c.find(specPath.child("podSelector"), policy.InvalidSelector, "%v; the policy selects no pod", err)
		c.nothingLeft()
		subject = labels.Nothing()
	}
	p.Subject = &policy.PodSelector{Namespace: o.Namespace, Pods: subject}
	p.isolates = c.policyTypes(specPath.child("policyTypes"), &o.Spec)
	if p.isolates == [2]bool{} {
		c.nothingLeft()
	}
	if p.isolates[policy.Ingress] {
		for i, r := range o.Spec.Ingress {
			at := ruleAt(policy.Ingress, i)
			p.rules[policy.Ingress] = append(p.rules[policy.Ingress], c.rule(at, r.From, r.Ports))
		}
	}
	if p.isolates[policy.Egress] {
		for i, r := range o.Spec.Egress {
			at := ruleAt(policy.Egress, i)
			p.rules[policy.Egress] = append(p.rules[policy.Egress], c.rule(at, r.To, r.Ports))
		}
	}
	return p
}

// policyTypes returns the directions in which the policy isolates (NP-4, NP-5).
func (c *networkPolicyCompiler) policyTypes(at location, spec *networkingv1.NetworkPolicySpec) (isolates [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{policy.Ingress: true, policy.Egress: len(spec.Egress) > 0}
	}
	for i, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			isolates[policy.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			isolates[policy.Egress] = true
		default:
			c.find(at.index(i), policy.FeatureNotSupported, "policy type %q is not known; it is ignored", t)
		}
	}
	return isolates
}

// noPort replaces an unreadable port. Its range is empty, so that it matches no packet, not even
// one with port 0.
var noPort = policy.Port{First: 1}

// rule compiles one rule. Missing peers or ports match everything (NP-8). Unreadable ones match
// nothing and keep their indices.
func (c *networkPolicyCompiler) rule(at location, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) policy.Rule {
	r := policy.Rule{
		Action:  policy.Allow,
		Tier:    policy.NetworkPolicyTier,
		Policy:  &c.ref,
		Index:   at.place.Rule,
		AnyPeer: len(peers) == 0,
		AnyPort: len(ports) == 0,
	}
	peersAt := at.peers()
	for i := range peers {
		peer, ok := c.peer(peersAt.item(i), &peers[i])
		if !ok {
			peer = policy.Peer{}
		}
		r.Peers = append(r.Peers, peer)
	}
	for i := range ports {
		port, ok := c.port(at.ports(networkPolicyPortsField).item(i), &ports[i])
		if !ok {
			port = noPort
		}
		r.Ports = append(r.Ports, port)
	}
	return r
}

// peer compiles one item of a from or to list (NP-11 to NP-13, NP-16).
func (c *networkPolicyCompiler) peer(at location, p *networkingv1.NetworkPolicyPeer) (policy.Peer, bool) {
	hasSelector := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case p.IPBlock != nil && hasSelector:
		c.find(at, policy.InvalidPeer, "ipBlock excludes podSelector and namespaceSelector; the peer matches nothing")
	case p.IPBlock != nil:
		return c.block(at.child("ipBlock"), p.IPBlock)
	case hasSelector:
		return c.pods(at, p)
	default:
		c.find(at, policy.InvalidPeer, "the peer has no field that is known; it matches nothing")
	}
	return policy.Peer{}, false
}

func (c *networkPolicyCompiler) pods(at location, p *networkingv1.NetworkPolicyPeer) (policy.Peer, bool) {
	s := &policy.PodSelector{Pods: labels.Everything()}
	if p.PodSelector != nil {
		pods, ok := c.selector(at.child("podSelector"), p.PodSelector)
		if !ok {
			return policy.Peer{}, false
		}
		s.Pods = pods
	}
	if p.NamespaceSelector == nil {
		s.Namespace = c.ref.Namespace
		return policy.Peer{Pods: s}, true
	}
	namespaces, ok := c.selector(at.child("namespaceSelector"), p.NamespaceSelector)
	s.Namespaces = namespaces
	return policy.Peer{Pods: s}, ok
}

// selector compiles a selector of a peer. Old objects may contain values that are no longer valid
// (NP-24).
func (c *networkPolicyCompiler) selector(at location, s *metav1.LabelSelector) (labels.Selector, bool) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.find(at, policy.InvalidSelector, "%v; the peer matches nothing", err)
	}
	return selector, err == nil
}

// block compiles an ipBlock (NP-17 to NP-20). If an except is unreadable or covers the whole block,
// the peer matches nothing. An except outside of the block is reported and ignored.
func (c *networkPolicyCompiler) block(at location, b *networkingv1.IPBlock) (policy.Peer, bool) {
	prefix, err := parsePrefix(b.CIDR)
	if err != nil {
		c.find(at.child("cidr"), policy.InvalidCIDR, "%v; the peer matches nothing", err)
		return policy.Peer{}, false
	}
	block := &policy.Block{Prefix: prefix}
	ok := true
	for i, s := range b.Except {
		at := at.child("except").index(i)
		except, err := parsePrefix(s)
		switch {
		case err != nil:
			c.find(at, policy.InvalidCIDR, "%v; the peer matches nothing", err)
			ok = false
		case !except.Overlaps(prefix):
			c.find(at, policy.InvalidCIDR, "%q is outside of %q; it is ignored", s, b.CIDR)
		case except.Bits() <= prefix.Bits():
			c.find(at, policy.InvalidCIDR, "%q leaves nothing of %q; the peer matches nothing", s, b.CIDR)
			ok = false
		default:
			block.Except = append(block.Except, except)
		}
	}
	return policy.Peer{Blocks: []policy.Block{*block}}, ok
}

// port compiles one item of a port list (NP-10, NP-25 to NP-29).
func (c *networkPolicyCompiler) port(at location, p *networkingv1.NetworkPolicyPort) (policy.Port, bool) {
	apiProtocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		apiProtocol = *p.Protocol
	}
	proto, ok := protocol(apiProtocol)
	switch {
	case !ok || apiProtocol == "": // a missing protocol is TCP, an empty one is invalid
		c.find(at.child("protocol"), policy.UnsupportedProtocol, "protocol %q is none of TCP, UDP, SCTP; the port matches nothing", apiProtocol)
		return policy.Port{}, false
	case apiProtocol == corev1.ProtocolSCTP && !c.features.SCTP:
		c.find(at.child("protocol"), policy.FeatureNotSupported, "SCTP is switched off; the port matches nothing")
		return policy.Port{}, false
	case apiProtocol == corev1.ProtocolSCTP && c.features.SCTPUntracked:
		c.find(at.child("protocol"), policy.FeatureNotSupported, "the kernel does not track SCTP connections; each packet is evaluated on its own, including replies")
	}
	port := policy.Port{Proto: proto}
	switch {
	case p.Port == nil:
		port.Last = maxPort
		ok = c.endPortWithout(at, p)
	case p.Port.Type == intstr.String:
		port.Name = p.Port.StrVal
		ok = c.portName(at, p)
	default:
		port.First, port.Last, ok = c.portRange(at, p)
	}
	return port, ok
}

func (c *networkPolicyCompiler) endPortWithout(at location, p *networkingv1.NetworkPolicyPort) bool {
	if p.EndPort != nil {
		c.find(at.child("endPort"), policy.InvalidPort, "endPort %d without port; the port matches nothing", *p.EndPort)
	}
	return p.EndPort == nil
}

func (c *networkPolicyCompiler) portName(at location, p *networkingv1.NetworkPolicyPort) bool {
	switch {
	case p.EndPort != nil:
		c.find(at.child("endPort"), policy.InvalidPort, "endPort %d with the named port %q; the port matches nothing", *p.EndPort, p.Port.StrVal)
		return false
	case len(validation.IsValidPortName(p.Port.StrVal)) > 0:
		c.find(at.child("port"), policy.InvalidPort, "%q is not a port name; the port matches nothing", p.Port.StrVal)
		return false
	}
	return true
}

// portRange returns the first and the last port of a numeric item.
func (c *networkPolicyCompiler) portRange(at location, p *networkingv1.NetworkPolicyPort) (first, last uint16, ok bool) {
	start := p.Port.IntVal
	if start < 1 || start > maxPort {
		c.find(at.child("port"), policy.InvalidPort, "port %d is not in 1-65535; the port matches nothing", start)
		return 0, 0, false
	}
	if p.EndPort == nil {
		return uint16(start), uint16(start), true
	}
	end := *p.EndPort
	switch {
	case !c.features.EndPort:
		c.find(at.child("endPort"), policy.FeatureNotSupported, "endPort is switched off; the port matches nothing")
	case end < start || end > maxPort:
		c.find(at.child("endPort"), policy.InvalidPort, "endPort %d is not in %d-65535; the port matches nothing", end, start)
	default:
		return uint16(start), uint16(end), true
	}
	return 0, 0, false
}
