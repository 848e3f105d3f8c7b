package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// peerField is a field of the peers of administrators' policies.
type peerField struct {
	name string
	// gates are those that the field needs in each direction.
	gates   [2][]*Gate
	isSet   func(*proposed.EgressPeer) bool
	compile func(*adminRule, location, *proposed.EgressPeer) policy.Peer
}

// peerFields has all fields (CN-11, CN-15 to CN-17, CN-42 to CN-44). A field also needs its place in the
// types of proposed and the conversions of each kind (clusterSources, v1alpha1.go), a patch of the
// definitions if it is proposed, and the oracle. TestFieldsOfPeersAndPorts
// names what is missing.
var peerFields = []peerField{
	{"namespaces", [2][]*Gate{}, func(p *proposed.EgressPeer) bool { return p.Namespaces != nil }, func(r *adminRule, at location, p *proposed.EgressPeer) policy.Peer {
		return r.podsPeer(at)(selectNamespaces(p.Namespaces))
	}},
	{"pods", [2][]*Gate{}, func(p *proposed.EgressPeer) bool { return p.Pods != nil }, func(r *adminRule, at location, p *proposed.EgressPeer) policy.Peer {
		return r.podsPeer(at)(selectPods(p.Pods))
	}},
	{"nodes", [2][]*Gate{policy.Ingress: {gateNodes, gateIngressByAddress}, policy.Egress: {gateNodes}}, func(p *proposed.EgressPeer) bool { return p.Nodes != nil }, (*adminRule).nodes},
	{"networks", [2][]*Gate{policy.Ingress: {gateIngressByAddress}}, func(p *proposed.EgressPeer) bool { return len(p.Networks) > 0 }, (*adminRule).networks},
	{"domainNames", [2][]*Gate{{gateDomainNames}, {gateDomainNames}}, func(p *proposed.EgressPeer) bool { return len(p.DomainNames) > 0 }, (*adminRule).domainNames},
	{accountsField, [2][]*Gate{{gateServiceAccounts}, {gateServiceAccounts}}, func(p *proposed.EgressPeer) bool { return p.ServiceAccounts != nil }, func(r *adminRule, at location, p *proposed.EgressPeer) policy.Peer {
		return r.podsPeer(at)(selectAccounts(p.ServiceAccounts))
	}},
	{"cidrGroups", [2][]*Gate{policy.Ingress: {gateCIDRGroups, gateIngressByAddress}, policy.Egress: {gateCIDRGroups}}, func(p *proposed.EgressPeer) bool { return p.CIDRGroups != nil }, (*adminRule).cidrGroups},
}

// peer compiles one item of a from or to list. It has exactly one field that is known.
func (r *adminRule) peer(at location, p *proposed.EgressPeer) policy.Peer {
	var field peerField
	known := 0
	for _, f := range peerFields {
		if f.isSet(p) {
			field = f
			known++
		}
	}
	if known != 1 {
		r.loseKind(at, policy.InvalidPeer, "the peer has %d fields that are known, exactly one is needed", known)
		return policy.Peer{}
	}
	at = at.child(field.name)
	for _, gate := range field.gates[at.place.Direction] {
		if !*gate.Field(&r.features) {
			r.loseKind(at, policy.FeatureNotSupported, "%s", gate.needed())
			return policy.Peer{}
		}
	}
	return field.compile(r, at, p)
}

func (r *adminRule) podsPeer(at location) func(*policy.PodSelector, error) policy.Peer {
	return func(s *policy.PodSelector, err error) policy.Peer {
		if err != nil {
			r.losePeer(at, policy.InvalidSelector, "%v", err)
			return policy.Peer{}
		}
		return policy.Peer{Pods: s}
	}
}

func (r *adminRule) nodes(at location, p *proposed.EgressPeer) policy.Peer {
	selector, err := metav1.LabelSelectorAsSelector(p.Nodes)
	if err != nil {
		r.losePeer(at, policy.InvalidSelector, "%v", err)
		return policy.Peer{}
	}
	return policy.Peer{Nodes: selector}
}

func (r *adminRule) networks(at location, p *proposed.EgressPeer) policy.Peer {
	var peer policy.Peer
	for i, cidr := range p.Networks {
		prefix, err := parsePrefix(string(cidr))
		if err != nil {
			r.losePeer(at.index(i), policy.InvalidCIDR, "%v", err)
			continue
		}
		peer.Blocks = append(peer.Blocks, policy.Block{Prefix: prefix})
	}
	return peer
}

// domainNames compiles domain names. Only rules that allow may have them: addresses are learned
// when pods query DNS, so a denial would miss those not learned yet.
func (r *adminRule) domainNames(at location, p *proposed.EgressPeer) policy.Peer {
	if !r.allows {
		r.losePeer(at, policy.FeatureNotSupported, "domain names are for rules that accept only")
		return policy.Peer{}
	}
	var peer policy.Peer
	for i, name := range p.DomainNames {
		domain, ok := parseDomain(string(name))
		if !ok {
			r.losePeer(at.index(i), policy.InvalidPeer, "%q is not a domain name", name)
			continue
		}
		peer.Domains = append(peer.Domains, domain)
	}
	return peer
}
