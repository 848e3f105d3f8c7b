package compile

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// adminRule compiles one rule of an administrator's policy. What of it cannot be
// read fails closed (CN-30, CN-31): in a rule that allows, it matches nothing, nor
// does the whole rule if a peer is of a kind that is not known or switched off. A
// rule that denies or passes denies instead: every peer if a peer cannot be read,
// its peers on every port if a port cannot.
type adminRule struct {
	*diagnosis
	allows             bool
	peers              []policy.Peer
	ports              []policy.Port
	anyPort            bool
	peerLost, portLost bool
	kindLost           bool // a peer is of a kind that is not known, or switched off
}

// Actions of all kinds.
const (
	actionAllow  = "Allow" // v1alpha1
	actionAccept = "Accept"
	actionDeny   = "Deny"
	actionPass   = "Pass"
)

// adminRule compiles s, the rule at a path, into a rule, or into two where a rule that
// allows has named ports and peers that declare none. actions are those that its kind
// has.
func (d *diagnosis) adminRule(at location, s *AdminRule, actions []string, tier policy.Tier) []policy.Rule {
	verdict := d.action(at.child("action"), s.action, actions)
	peersAt, index := at.peers(), at.place.Rule
	r := &adminRule{diagnosis: d, allows: verdict == policy.Allow, anyPort: s.ports == nil}
	if len(s.Peers) == 0 {
		r.losePeer(peersAt, policy.InvalidPeer, "there is no peer")
	}
	for i := range s.Peers {
		r.peers = append(r.peers, r.peer(peersAt.item(i), &s.Peers[i]))
	}
	if s.ports != nil {
		s.ports(r, at)
	}
	rule := policy.Rule{Action: verdict, Tier: tier, Policy: &d.ref, Index: index, Peers: r.peers, Ports: r.ports, AnyPort: r.anyPort}
	if r.peerLost && !r.allows {
		return []policy.Rule{{Action: policy.Deny, Tier: tier, Policy: rule.Policy, Index: index, AnyPeer: true, AnyPort: true}}
	}
	if r.kindLost && r.allows {
		rule.Peers = make([]policy.Peer, len(rule.Peers)) // which match nothing
	}
	if r.portLost && !r.allows {
		rule.Action, rule.Ports, rule.AnyPort = policy.Deny, nil, true
		return []policy.Rule{rule}
	}
	return r.splitNamed(rule, peersAt)
}

// action returns the verdict of an action. One that the kind does not have
// denies.
func (d *diagnosis) action(at location, action string, known []string) policy.Action {
	if !slices.Contains(known, action) {
		d.find(at, policy.FeatureNotSupported, "action %q is none of %s; the rule denies", action, strings.Join(known, ", "))
		return policy.Deny
	}
	switch action {
	case actionAllow, actionAccept:
		return policy.Allow
	case actionPass:
		return policy.Pass
	}
	return policy.Deny
}

// losePeer records a peer that cannot be read.
func (r *adminRule) losePeer(at location, reason, format string, args ...any) {
	r.peerLost = true
	r.find(at, reason, "%s; %s", fmt.Sprintf(format, args...), r.effect("the peer matches nothing"))
}

// loseKind records a peer of a kind that is not known, or switched off.
func (r *adminRule) loseKind(at location, reason, format string, args ...any) {
	r.peerLost, r.kindLost = true, true
	r.find(at, reason, "%s; %s", fmt.Sprintf(format, args...), r.effect("the rule matches nothing"))
}

func (r *adminRule) effect(ofAllow string) string {
	if r.allows {
		return ofAllow
	}
	return "the rule denies everything"
}

// losePort records a port that cannot be read, and returns a port that matches nothing.
func (r *adminRule) losePort(at location, reason, format string, args ...any) policy.Port {
	effect := "the rule denies its peers on every port"
	if r.allows {
		effect = "the port matches nothing"
	}
	r.portLost = true
	r.find(at, reason, "%s; %s", fmt.Sprintf(format, args...), effect)
	return noPort
}

// peer compiles one item of a from or to list (CN-11, CN-15 to CN-17).
func (r *adminRule) peer(at location, p *v1alpha2.ClusterNetworkPolicyEgressPeer) policy.Peer {
	known := count(p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0)
	switch {
	case known != 1:
		r.loseKind(at, policy.InvalidPeer, "the peer has %d fields that are known, exactly one is needed", known)
		return policy.Peer{}
	case p.Namespaces != nil:
		s, err := selectNamespaces(p.Namespaces)
		return r.podsPeer(at.child("namespaces"), s, err)
	case p.Pods != nil:
		s, err := selectPods(p.Pods)
		return r.podsPeer(at.child("pods"), s, err)
	case p.Nodes != nil:
		return r.nodes(at.child("nodes"), p.Nodes)
	case len(p.Networks) > 0:
		return r.networks(at.child("networks"), p.Networks)
	}
	return r.domainNames(at.child("domainNames"), p.DomainNames)
}

func (r *adminRule) podsPeer(at location, s *policy.PodSelector, err error) policy.Peer {
	if err != nil {
		r.losePeer(at, policy.InvalidSelector, "%v", err)
		return policy.Peer{}
	}
	return policy.Peer{Pods: s}
}

func (r *adminRule) nodes(at location, s *metav1.LabelSelector) policy.Peer {
	if !r.features.Nodes {
		r.loseKind(at, policy.FeatureNotSupported, "nodes as peers are switched off")
		return policy.Peer{}
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		r.losePeer(at, policy.InvalidSelector, "%v", err)
		return policy.Peer{}
	}
	return policy.Peer{Nodes: selector}
}

func (r *adminRule) networks(at location, networks []v1alpha2.CIDR) policy.Peer {
	var peer policy.Peer
	for i, cidr := range networks {
		prefix, err := parsePrefix(string(cidr))
		if err != nil {
			r.losePeer(at.index(i), policy.InvalidCIDR, "%v", err)
			continue
		}
		peer.Blocks = append(peer.Blocks, policy.Block{Prefix: prefix})
	}
	return peer
}

// domainNames compiles names to be learned from DNS. Addresses are learned as
// pods ask, so that what is not learned yet would slip through a denial.
func (r *adminRule) domainNames(at location, names []v1alpha2.DomainName) policy.Peer {
	switch {
	case !r.features.DomainNames:
		r.loseKind(at, policy.FeatureNotSupported, "domain names as peers are switched off")
		return policy.Peer{}
	case !r.allows:
		r.losePeer(at, policy.FeatureNotSupported, "domain names are for rules that accept only")
		return policy.Peer{}
	}
	var peer policy.Peer
	for i, name := range names {
		domain, ok := parseDomain(string(name))
		if !ok {
			r.losePeer(at.index(i), policy.InvalidPeer, "%q is not a domain name", name)
			continue
		}
		peer.Domains = append(peer.Domains, domain)
	}
	return peer
}

// parseDomain reads a name, perhaps with "*." before it and a dot behind it.
func parseDomain(s string) (policy.Domain, bool) {
	name, below := strings.CutPrefix(strings.ToLower(s), "*.")
	name = strings.TrimSuffix(name, ".")
	const maxName, maxLabel = 253, 63 // RFC 1035, section 2.3.4
	if len(name) > maxName || strings.Contains(name, "*") {
		return policy.Domain{}, false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return policy.Domain{}, false
		}
	}
	return policy.Domain{Name: name, Below: below}, true
}

// namedPort compiles the name of a port, of whatever protocol the destination
// declares it for (CN-14). The API forbids it beside peers that are addresses,
// which declare no ports, but not every server rejects such a rule. One that denies
// or passes would let through what it was written for; one that allows is split.
func (r *adminRule) namedPort(at location, name string) policy.Port {
	if len(validation.IsValidPortName(name)) > 0 {
		return r.losePort(at, policy.InvalidPort, "%q is not a port name", name)
	}
	if !r.allows && slices.ContainsFunc(r.peers, byAddress) {
		return r.losePort(at, policy.InvalidPort, "the rule has peers that declare no ports, and a port has a name")
	}
	return policy.Port{Proto: packet.Unknown, Name: name}
}

// portProtocol compiles the protocol of a port; ok is false if the port is lost.
func (r *adminRule) portProtocol(at location, p corev1.Protocol) (packet.Proto, bool) {
	proto, ok := protocol(p)
	switch {
	case !ok:
		r.losePort(at, policy.UnsupportedProtocol, "protocol %q is none of TCP, UDP, SCTP", p)
		return 0, false
	case proto == packet.SCTP && !r.features.SCTP:
		r.losePort(at, policy.FeatureNotSupported, "SCTP is switched off")
		return 0, false
	case proto == packet.SCTP && r.features.SCTPUntracked:
		r.find(at, policy.FeatureNotSupported, "the kernel does not track SCTP connections; each packet is evaluated on its own, including replies")
	}
	return proto, true
}

// portNumber compiles a single port (CN-13).
func (r *adminRule) portNumber(at location, proto packet.Proto, number int32) policy.Port {
	if number < 1 || number > maxPort {
		return r.losePort(at, policy.InvalidPort, "port %d is not in 1-65535", number)
	}
	return policy.Port{Proto: proto, First: uint16(number), Last: uint16(number)}
}

// portRange compiles a range, both ends included (CN-13). A start that is not
// below the end passes the schema of v1alpha1; equal ones can still be honoured.
func (r *adminRule) portRange(at location, proto packet.Proto, start, end int32) policy.Port {
	switch {
	case start < 1 || start > maxPort:
		return r.losePort(at.child("start"), policy.InvalidPort, "start %d is not in 1-65535", start)
	case end < start || end > maxPort:
		return r.losePort(at.child("end"), policy.InvalidPort, "end %d is not in %d-65535", end, start)
	case end == start:
		r.find(at.child("end"), policy.InvalidPort, "end %d is not above start; the one port is matched", end)
	}
	return policy.Port{Proto: proto, First: uint16(start), Last: uint16(end)}
}

// splitNamed keeps named ports of a rule that allows from peers that are
// address: such a peer declares no ports, even where its addresses are pods'. The
// rule becomes two, in which items keep their places.
func (r *adminRule) splitNamed(rule policy.Rule, peersAt location) []policy.Rule {
	if !slices.ContainsFunc(rule.Ports, isNamed) || !slices.ContainsFunc(rule.Peers, byAddress) {
		return []policy.Rule{rule}
	}
	pods, addrs := rule, rule
	pods.Peers, addrs.Peers, addrs.Ports = slices.Clone(rule.Peers), slices.Clone(rule.Peers), slices.Clone(rule.Ports)
	for i, p := range rule.Peers {
		if byAddress(p) {
			pods.Peers[i] = policy.Peer{}
			r.find(peersAt.item(i), policy.InvalidPort, "the peer declares no ports; named ports do not match it")
		} else {
			addrs.Peers[i] = policy.Peer{}
		}
	}
	for i, p := range rule.Ports {
		if isNamed(p) {
			addrs.Ports[i] = noPort
		}
	}
	return []policy.Rule{pods, addrs}
}

func isNamed(p policy.Port) bool { return p.Name != "" }

// byAddress reports whether a peer is selected by address and not as a pod.
func byAddress(p policy.Peer) bool { return p.Blocks != nil || p.Nodes != nil || p.Domains != nil }
