package oracle

import (
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// AdminFaults lists what in the policies of administrators cannot be honoured, by
// "Kind/name".
func AdminFaults(c Cluster) map[string][]Fault {
	all := make(map[string][]Fault)
	for _, o := range c.AdminNetworkPolicies {
		p := readAdminNetworkPolicy(o)
		all[p.kind+"/"+p.name] = c.adminFaults(p, "ports")
	}
	for _, o := range c.BaselineAdminNetworkPolicies {
		p := readBaselineAdminNetworkPolicy(o)
		all[p.kind+"/"+p.name] = c.adminFaults(p, "ports")
	}
	for _, o := range c.ClusterNetworkPolicies {
		p := readClusterNetworkPolicy(o)
		all[p.kind+"/"+p.name] = c.adminFaults(p, "protocols")
	}
	return all
}

// adminFaults lists the faults of a policy whose rules call their ports so.
func (c Cluster) adminFaults(p adminPolicy, ports string) []Fault {
	var faults []Fault
	if p.isBANP() && p.name != "default" { // CN-32
		faults = append(faults, Fault{Field: "metadata.name", Reason: FeatureNotSupported})
	}
	if p.tier != adminTier && p.tier != baselineTier {
		faults = append(faults, Fault{Field: "spec.tier", Reason: FeatureNotSupported})
	}
	ignored := len(faults) > 0
	if !p.subject.isReadable() {
		faults = append(faults, Fault{Field: "spec.subject", Reason: InvalidSelector, Void: ignored})
	}
	void := len(faults) > 0
	for _, side := range []struct {
		dir         networkingv1.PolicyType
		rules, peer string
	}{
		{networkingv1.PolicyTypeIngress, "ingress", "from"},
		{networkingv1.PolicyTypeEgress, "egress", "to"},
	} {
		for i, r := range p.rules(side.dir) {
			path := fmt.Sprintf("spec.%s[%d].", side.rules, i)
			faults = append(faults, c.adminRuleFaults(r, path, path+side.peer, path+ports, void)...)
		}
	}
	return faults
}

func (c Cluster) adminRuleFaults(r adminRule, path, peers, ports string, void bool) []Fault {
	var faults []Fault
	if r.action != allow && r.action != deny && r.action != pass {
		faults = append(faults, Fault{path + "action", FeatureNotSupported, void})
	}
	if len(r.peers) == 0 { // CN-30
		faults = append(faults, Fault{peers, InvalidPeer, void})
	}
	named := slices.ContainsFunc(r.ports, func(p adminPort) bool { return p.name != nil && c.portIsReadable(p) })
	for i, peer := range r.peers {
		field := fmt.Sprintf("%s[%d]", peers, i)
		faults = appendFaults(faults, field, void, c.adminPeerFaults(peer))
		if r.action != allow && peer.domainNames != nil { // CN-17
			faults = append(faults, Fault{field, FeatureNotSupported, void})
		}
		if r.action == allow && named && peer.fields() == 1 && !peer.arePods() { // CN-14
			faults = append(faults, Fault{field, InvalidPort, void || c.enforced(r).peers == nil})
		}
	}
	for i, port := range r.ports {
		field := fmt.Sprintf("%s[%d]", ports, i)
		faults = appendFaults(faults, field, void, c.adminPortFaults(port))
		if r.action != allow && port.name != nil && c.portIsReadable(port) && !r.allArePods() { // CN-14
			faults = append(faults, Fault{field, InvalidPort, void || c.enforced(r).everyone})
		}
	}
	return faults
}

// peersAreReadable reports whether a rule that denies or passes can be honoured as
// far as its peers go. CN-17: it cannot be asked about domain names. Without any
// peer, which no server admits, it is as if they were not readable.
func (c Cluster) peersAreReadable(r adminRule) bool {
	return len(r.peers) > 0 && !slices.ContainsFunc(r.peers, func(p adminPeer) bool {
		return p.domainNames != nil || !c.peerIsReadable(p)
	})
}

// peerIsReadable reports whether the whole of a peer can be honoured.
func (c Cluster) peerIsReadable(p adminPeer) bool { return len(c.adminPeerFaults(p)) == 0 }

// adminPeerFaults: CN-15, CN-17, CN-30, CN-31 and selectors as in NP-24.
func (c Cluster) adminPeerFaults(p adminPeer) []Reason {
	if p.fields() != 1 {
		return []Reason{InvalidPeer}
	}
	faults := p.podSet.faults()
	if p.nodes != nil && !selectorIsValid(*p.nodes) {
		faults = append(faults, InvalidSelector)
	}
	if c.notKnown(p) {
		faults = append(faults, FeatureNotSupported)
	}
	if slices.ContainsFunc(p.networks, func(text string) bool { _, ok := parseCIDR(text); return !ok }) {
		faults = append(faults, InvalidCIDR)
	}
	if slices.ContainsFunc(p.domainNames, func(text string) bool { return !isDomainName(text) }) {
		faults = append(faults, InvalidPeer)
	}
	return faults
}

// isReadable reports whether it is one thing, with selectors that can be read.
func (s podSet) isReadable() bool { return s.fields() == 1 && len(s.faults()) == 0 }

// faults are those of selectors that cannot be read.
func (s podSet) faults() []Reason {
	selectors := []*metav1.LabelSelector{s.namespaces}
	if s.pods != nil {
		selectors = append(selectors, &s.pods.namespaces, &s.pods.pods)
	}
	var faults []Reason
	for _, selector := range selectors {
		if selector != nil && !selectorIsValid(*selector) {
			faults = append(faults, InvalidSelector)
		}
	}
	return faults
}

// adminPortFaults: what is wrong with an item of ports. A range of one, which
// newer servers do not admit, is a fault and can be read.
func (c Cluster) adminPortFaults(p adminPort) []Reason {
	if p.isRange && p.first == p.last && c.portIsReadable(p) {
		return []Reason{InvalidPort}
	}
	return c.unreadable(p)
}

// portIsReadable reports whether an item can be honoured.
func (c Cluster) portIsReadable(p adminPort) bool { return len(c.unreadable(p)) == 0 }

// unreadable: CN-13, CN-14, CN-30 and the table of the status section.
func (c Cluster) unreadable(p adminPort) []Reason {
	switch {
	case p == adminPort{}:
		return []Reason{InvalidPort}
	case p.name != nil && len(validation.IsValidPortName(*p.name)) > 0:
		return []Reason{InvalidPort}
	case p.name != nil:
		return nil
	}
	var faults []Reason
	if _, known := protocols[p.protocol]; !known {
		faults = append(faults, UnsupportedProtocol)
	}
	if p.protocol == "SCTP" && !c.SCTP {
		faults = append(faults, FeatureNotSupported)
	}
	if !inPortRange(p.first) || !inPortRange(p.last) || p.first > p.last {
		faults = append(faults, InvalidPort)
	}
	return faults
}
