package oracle

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// AdminFaults returns the parts of administrators' policies that cannot be honoured, by
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

// adminFaults returns the faults of a policy whose rules have their ports in the given field.
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
	if c.accountsAreOff(p.subject) {
		faults = append(faults, Fault{Field: "spec.subject", Reason: FeatureNotSupported, Void: ignored || p.subject.fields() != 1})
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
			if p.kind == "ClusterNetworkPolicy" {
				faults = append(faults, c.refusedFaults(r, p.tier, path+side.peer, void)...)
			}
		}
	}
	return faults
}

// refusedFaults: CN-38, values that are still read although newer servers refuse them, or may.
func (c Cluster) refusedFaults(r adminRule, t tier, peers string, void bool) []Fault {
	var faults []Fault
	for i, peer := range r.peers {
		field := fmt.Sprintf("%s[%d]", peers, i)
		if slices.ContainsFunc(peer.networks, func(text string) bool {
			read, ok := parseCIDR(text)
			return ok && read != strictPrefix(text)
		}) {
			faults = append(faults, Fault{field, InvalidCIDR, void})
		}
		if slices.ContainsFunc(peer.domainNames, func(text string) bool { return isDomainName(text) && !isPlainName(text) }) {
			faults = append(faults, Fault{field, InvalidPeer, void})
		}
		if t == baselineTier && r.action == allow && peer.domainNames != nil && c.DomainNames {
			faults = append(faults, Fault{field, InvalidPeer, void})
		}
	}
	return faults
}

// strictPrefix reads a prefix and refuses leading zeros and mapped addresses.
func strictPrefix(text string) netip.Prefix {
	p, _ := netip.ParsePrefix(text)
	return p
}

// isPlainName reports whether a domain name has at least two labels that begin and end with a
// letter or a digit and may contain dashes and underscores.
func isPlainName(text string) bool {
	labels := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, "*."), "."), ".")
	const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return len(labels) > 1 && !slices.ContainsFunc(labels, func(label string) bool {
		return label == "" || strings.Trim(label, alphanumeric+"-_") != "" || strings.Trim(label[:1]+label[len(label)-1:], alphanumeric) != ""
	})
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
		if r.action == allow && named && peer.fields() == 1 && !peer.namesPorts() { // CN-14
			faults = append(faults, Fault{field, InvalidPort, void || c.enforced(r).peers == nil})
		}
	}
	for i, port := range r.ports {
		field := fmt.Sprintf("%s[%d]", ports, i)
		faults = appendFaults(faults, field, void, c.adminPortFaults(port))
		if r.action != allow && port.name != nil && c.portIsReadable(port) && !r.allNamePorts() { // CN-14
			faults = append(faults, Fault{field, InvalidPort, void || c.enforced(r).everyone})
		}
	}
	return faults
}

// peersAreReadable reports whether the peers of a rule that denies or passes can be honoured.
// CN-17: it must not have domain names. A rule without peers, which no server accepts, counts as
// unreadable.
func (c Cluster) peersAreReadable(r adminRule) bool {
	return len(r.peers) > 0 && !slices.ContainsFunc(r.peers, func(p adminPeer) bool {
		return p.domainNames != nil || !c.peerIsReadable(p)
	})
}

// peerIsReadable reports whether the whole of a peer can be honoured.
func (c Cluster) peerIsReadable(p adminPeer) bool { return len(c.adminPeerFaults(p)) == 0 }

// adminPeerFaults: CN-15, CN-17, CN-30, CN-31, CN-44 and selectors as in NP-24.
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
	if p.groups != nil {
		faults = append(faults, c.groupFaults(*p.groups)...)
	}
	if slices.ContainsFunc(p.domainNames, func(text string) bool { return !isDomainName(text) }) {
		faults = append(faults, InvalidPeer)
	}
	return faults
}

// isReadable reports whether exactly one field is set, with readable selectors.
func (s podSet) isReadable() bool { return s.fields() == 1 && len(s.faults()) == 0 }

// accountName is the name of a service account: lower case labels with dots between. The length is not
// checked.
var accountName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// faults returns the faults of unreadable selectors.
func (s podSet) faults() []Reason {
	selectors := []*metav1.LabelSelector{s.namespaces}
	if s.pods != nil {
		selectors = append(selectors, &s.pods.namespaces, &s.pods.pods)
	}
	var faults []Reason
	if s.accounts != nil {
		selectors = append(selectors, &s.accounts.namespaces)
		if len(s.accounts.names) == 0 || slices.ContainsFunc(s.accounts.names, func(name string) bool { return !accountName.MatchString(name) }) {
			faults = append(faults, InvalidSelector)
		}
	}
	for _, selector := range selectors {
		if selector != nil && !selectorIsValid(*selector) {
			faults = append(faults, InvalidSelector)
		}
	}
	return faults
}

// adminPortFaults returns the faults of an item of ports. A range of one port, which newer servers
// refuse, is a fault but readable.
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
