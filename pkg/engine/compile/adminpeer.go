package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// peerField is a field of peers, and of subjects if it selects pods.
type peerField struct {
	name string
	// gates are those that the field needs in each direction.
	gates [2]gates
	isSet func(*proposed.EgressPeer) bool
	// pods is nil for fields that do not select pods, compile for those that do.
	pods    func(*proposed.EgressPeer) (*policy.PodSelector, error)
	compile func(*adminRule, location, *proposed.EgressPeer) policy.Peer
}

// peerFields has all fields (CN-9, CN-11, CN-15 to CN-17, CN-42 to CN-45), one row for each that is
// proposed. TestFieldsOfPeersAndPorts names what else such a field needs.
var peerFields = []peerField{
	{"namespaces", [2]gates{}, func(p *proposed.EgressPeer) bool { return p.Namespaces != nil }, selectNamespaces, nil},
	{"pods", [2]gates{}, func(p *proposed.EgressPeer) bool { return p.Pods != nil }, selectPods, nil},
	{"nodes", [2]gates{policy.Ingress: {gateNodes, gateIngressByAddress}, policy.Egress: {gateNodes}}, func(p *proposed.EgressPeer) bool { return p.Nodes != nil }, nil, (*adminRule).nodes},
	{"networks", [2]gates{policy.Ingress: {gateIngressByAddress}}, func(p *proposed.EgressPeer) bool { return len(p.Networks) > 0 }, nil, (*adminRule).networks},
	{"domainNames", [2]gates{{gateDomainNames}, {gateDomainNames}}, func(p *proposed.EgressPeer) bool { return len(p.DomainNames) > 0 }, nil, (*adminRule).domainNames},
	{"serviceAccounts", [2]gates{{gateServiceAccounts}, {gateServiceAccounts}}, func(p *proposed.EgressPeer) bool { return p.ServiceAccounts != nil }, selectAccounts, nil},
	{"cidrGroups", [2]gates{policy.Ingress: {gateCIDRGroups, gateIngressByAddress}, policy.Egress: {gateCIDRGroups}}, func(p *proposed.EgressPeer) bool { return p.CIDRGroups != nil }, nil, (*adminRule).cidrGroups},
	{"all", [2]gates{{gateMatchAll}, {gateMatchAll}}, func(p *proposed.EgressPeer) bool { return p.All != nil }, nil, (*adminRule).all},
}

// fieldOf returns the field of p, and how many fields of p are known.
func fieldOf(p *proposed.EgressPeer) (field peerField, known int) {
	for _, f := range peerFields {
		if f.isSet(p) {
			field = f
			known++
		}
	}
	return field, known
}

// Adds returns the fields that enabled proposals add to the kind, as paths without indices.
func (k *Kind) Adds(f Features) (paths []string) {
	for _, field := range peerFields {
		if k.HasProposals && field.pods != nil && field.gates[policy.Ingress].propose(f) {
			paths = append(paths, "spec.subject."+field.name)
		}
		for d, gates := range field.gates {
			if d := policy.Direction(d); k.HasProposals && gates.propose(f) {
				paths = append(paths, "spec."+d.String()+"."+PeersField(d)+"."+field.name)
			}
		}
	}
	return paths
}

// peer compiles one item of a from or to list.
func (r *adminRule) peer(at location, p *proposed.EgressPeer) policy.Peer {
	field, known := fieldOf(p)
	if known != 1 {
		r.loseKind(at, policy.InvalidPeer, "the peer has %d fields that are known, exactly one is needed", known)
		return policy.Peer{}
	}
	at = at.child(field.name)
	if gate := field.gates[at.place.Direction].disabled(r.features); gate != nil {
		r.loseKind(at, policy.FeatureNotSupported, "%s", gate.needed())
		return policy.Peer{}
	}
	if field.pods == nil {
		return field.compile(r, at, p)
	}
	selector, err := field.pods(p)
	if err != nil {
		r.losePeer(at, policy.InvalidSelector, "%v", err)
		return policy.Peer{}
	}
	return policy.Peer{Pods: selector}
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
