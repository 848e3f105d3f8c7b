package compile

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// adminRule compiles one rule of an administrator's policy. Unreadable parts fail closed (CN-30,
// CN-31). In a rule that allows, an unreadable item matches nothing, and the whole rule matches
// nothing if a peer is of an unknown or disabled kind. A rule that denies or passes becomes one
// that denies: every peer if a peer is unreadable, its peers on every port if a port is.
type adminRule struct {
	*diagnosis
	name               string
	allows             bool
	peers              []policy.Peer
	ports              []policy.Port
	anyPort            bool
	peerLost, portLost bool
	kindLost           bool // a peer is of an unknown or disabled kind
}

// The actions of all kinds.
const (
	actionAllow  = "Allow" // v1alpha1
	actionAccept = "Accept"
	actionDeny   = "Deny"
	actionPass   = "Pass"
)

// adminRule compiles s, the rule at a location. The result is two rules if s allows and has both
// named ports and peers that declare none. actions are those of its kind.
func (d *diagnosis) adminRule(at location, s *AdminRule, actions []string, tier policy.Tier) []policy.Rule {
	verdict := d.action(at.child("action"), s.action, actions)
	peersAt, index := at.peers(), at.place.Rule
	r := &adminRule{diagnosis: d, name: s.name, allows: verdict == policy.Allow, anyPort: s.ports == nil}
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
		rule.Peers = make([]policy.Peer, len(rule.Peers)) // zero peers match nothing
	}
	if r.portLost && !r.allows {
		rule.Action, rule.Ports, rule.AnyPort = policy.Deny, nil, true
		return []policy.Rule{rule}
	}
	return r.splitNamed(rule, peersAt)
}

// action compiles an action. An action that the kind does not have denies.
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

// find adds a finding about the rule.
func (r *adminRule) find(at location, reason, format string, args ...any) {
	r.diagnosis.find(at, reason, "%s", withName(r.name, format, args...))
}

// withName adds the name of a rule, if it has one, to a message about it (CN-39).
func withName(name, format string, args ...any) string {
	message := fmt.Sprintf(format, args...)
	if name != "" {
		message += fmt.Sprintf(" (rule %q)", name)
	}
	return message
}

// losePeer records an unreadable peer.
func (r *adminRule) losePeer(at location, reason, format string, args ...any) {
	r.peerLost = true
	r.find(at, reason, "%s; %s", fmt.Sprintf(format, args...), r.effect("the peer matches nothing"))
}

// loseKind records a peer of an unknown or disabled kind.
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

// losePort records an unreadable port and returns a port that matches nothing.
func (r *adminRule) losePort(at location, reason, format string, args ...any) policy.Port {
	effect := "the rule denies its peers on every port"
	if r.allows {
		effect = "the port matches nothing"
	}
	r.portLost = true
	r.find(at, reason, "%s; %s", fmt.Sprintf(format, args...), effect)
	return noPort
}

// namedPort compiles the name of a port, for any protocol that the destination declares it with
// (CN-14). The API forbids it together with peers that are addresses, which declare no ports, but
// not every server rejects such a rule. If it denies or passes, it would let through the traffic
// that it is meant to stop, so the port is lost; if it allows, splitNamed splits it. In ingress the
// subject declares the ports, so the name holds for every peer (CN-42).
func (r *adminRule) namedPort(at location, name string) policy.Port {
	if len(validation.IsValidPortName(name)) > 0 {
		return r.losePort(at, policy.InvalidPort, "%q is not a port name", name)
	}
	if !r.allows && at.place.Direction == policy.Egress && slices.ContainsFunc(r.peers, isByAddress) {
		return r.losePort(at, policy.InvalidPort, "the rule has peers that declare no ports, and a port has a name")
	}
	return policy.Port{Proto: packet.Unknown, Name: name}
}

// portProtocol compiles the protocol of a port. ok is false if losePort was called.
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

// portRange compiles an inclusive range (CN-13). The schema of v1alpha1 accepts a start that is not
// below the end; equal ones can still be honoured.
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

// splitNamed splits a rule that allows, so that its named ports do not match peers that are
// addresses: such a peer declares no ports, even if a pod has the address. Items keep their indices
// in both rules.
func (r *adminRule) splitNamed(rule policy.Rule, peersAt location) []policy.Rule {
	if peersAt.place.Direction == policy.Ingress || !slices.ContainsFunc(rule.Ports, isNamed) || !slices.ContainsFunc(rule.Peers, isByAddress) {
		return []policy.Rule{rule}
	}
	pods, addrs := rule, rule
	pods.Peers, addrs.Peers, addrs.Ports = slices.Clone(rule.Peers), slices.Clone(rule.Peers), slices.Clone(rule.Ports)
	for i, p := range rule.Peers {
		if isByAddress(p) {
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

// isByAddress reports whether a peer is selected by address rather than as a pod.
func isByAddress(p policy.Peer) bool { return p.Blocks != nil || p.Nodes != nil || p.Domains != nil }
