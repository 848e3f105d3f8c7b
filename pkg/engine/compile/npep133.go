package compile

import (
	"regexp"
	"strings"

	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

var gateDomainNames = &Gate{
	"DomainNames", Experimental, "NPEP-133", "domain names as peers of administrators' policies",
	func(f *Features) *bool { return &f.DomainNames },
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

// parseDomain reads a name with an optional "*." prefix and an optional trailing dot.
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

// domainName is the pattern since v0.3.0 of the API.
var domainName = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`)

// refusedDomains is refused for the names of one peer.
func (d *diagnosis) refusedDomains(at location, rule *AdminRule, names []v1beta1.DomainName, tier policy.Tier) {
	for k, name := range names {
		if _, ok := parseDomain(string(name)); ok && !domainName.MatchString(string(name)) {
			d.find(at.index(k), policy.InvalidPeer, "%s", withName(rule.name, "%q is refused since v0.3.0 of the API; the name is matched as before", name))
		}
	}
	if tier == policy.BaselineTier && rule.action == actionAccept && len(names) > 0 && d.features.DomainNames {
		d.find(at, policy.InvalidPeer, "%s", withName(rule.name, "NPEP-133 allows domain names in the Admin tier only, so a later release of the API may refuse them; they are matched"))
	}
}
