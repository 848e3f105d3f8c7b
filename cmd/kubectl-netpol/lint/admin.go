package lint

import (
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

func noRules(c *cluster) {
	for _, p := range c.policies {
		if p.admin() && !unreadable(p) && !p.Applies(policy.Ingress) && !p.Applies(policy.Egress) {
			c.find(p, "spec", "", "there is no rule of ingress and none of egress")
		}
	}
}

// denyAllNetworks finds a Deny of all addresses of a family on every port that no earlier
// rule exempts pods from.
func denyAllNetworks(c *cluster) {
	for _, p := range c.policies {
		if !p.admin() {
			continue
		}
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			if r.Action == policy.Deny && r.AnyPort && b.Prefix.Bits() == 0 && !slices.ContainsFunc(rulesBefore(p, d, r), letsPodsThrough) {
				c.find(p, blockField(p, d, r, i, k), "", "%v is denied, with the addresses of all pods and nodes", b.Prefix)
			}
		})
	}
}

// rulesBefore returns the rules of a policy that precede r.
func rulesBefore(p *compiled, d policy.Direction, r *policy.Rule) []policy.Rule {
	rules := p.Rules(d)
	return rules[:slices.IndexFunc(rules, func(o policy.Rule) bool { return o.Index == r.Index })]
}

// letsPodsThrough reports whether a rule passes or allows connections to pods of other
// namespaces on every port.
func letsPodsThrough(r policy.Rule) bool {
	return r.Action != policy.Deny && r.AnyPort && slices.ContainsFunc(r.Peers, func(p policy.Peer) bool {
		return p.Pods != nil && p.Pods.Namespace == "" && p.Pods.SelectsWhole()
	})
}

// allowsNames reports whether a rule allows domain names.
func allowsNames(r policy.Rule) bool {
	return r.Action == policy.Allow && slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return len(p.Domains) > 0 })
}

// domainWithoutDeny finds rules that allow domain names for pods whose remaining egress
// nothing restricts: no administrator's Deny and no isolation.
func domainWithoutDeny(c *cluster) {
	for _, p := range c.policies {
		if !p.admin() || c.restricted(p) {
			continue
		}
		for d, r := range p.rules {
			if allowsNames(*r) {
				c.find(p, ruleField(d, r), "", "the rule allows domain names, and no rule or isolation denies other egress of these pods")
				break
			}
		}
	}
}

// restricted reports whether anything denies egress of subjects of p.
func (c *cluster) restricted(p *compiled) bool {
	return slices.ContainsFunc(c.policies, func(o *compiled) bool {
		denies := o.isolates(policy.Egress) || slices.ContainsFunc(o.Rules(policy.Egress), func(r policy.Rule) bool { return r.Action == policy.Deny })
		return denies && !unreadable(o) && !unreadable(p) && c.haveSubjectsInCommon(p, o)
	})
}

// domainWithoutDNS finds rules that allow domain names in a policy that denies all networks
// without allowing DNS before.
func domainWithoutDNS(c *cluster) {
	for _, p := range c.policies {
		if !p.admin() {
			continue
		}
		rules := p.Rules(policy.Egress)
		deny := slices.IndexFunc(rules, func(r policy.Rule) bool {
			return r.Action == policy.Deny && (r.AnyPort || matchesPort(&r, packet.UDP, dnsPort)) && (r.AnyPeer || slices.ContainsFunc(r.Peers, isEverything))
		})
		if deny < 0 || !slices.ContainsFunc(rules[:deny], allowsNames) {
			continue
		}
		if !slices.ContainsFunc(rules[:deny], letsDNSThrough) {
			i := slices.IndexFunc(rules, allowsNames)
			c.find(p, ruleField(policy.Egress, &rules[i]), "", "%s denies DNS, and no rule before it allows or passes UDP 53 to pods or networks", ruleField(policy.Egress, &rules[deny]))
		}
	}
}

// isEverything reports whether a peer is all pods or all addresses of a family.
func isEverything(p policy.Peer) bool {
	return p.Pods != nil && isEveryPod(p.Pods) || slices.ContainsFunc(p.Blocks, func(b policy.Block) bool { return b.Prefix.Bits() == 0 })
}

// letsDNSThrough reports whether a rule passes or allows DNS to pods, nodes or networks.
func letsDNSThrough(r policy.Rule) bool {
	dns := matchesPort(&r, packet.UDP, dnsPort) || matchesPort(&r, packet.UDP, openShiftDNSPort) ||
		slices.ContainsFunc(r.Ports, func(p policy.Port) bool { return strings.HasPrefix(p.Name, "dns") })
	return r.Action != policy.Deny && dns && slices.ContainsFunc(r.Peers, func(p policy.Peer) bool {
		return p.Pods != nil || p.Nodes != nil || len(p.Blocks) > 0
	})
}

// private are the internal ranges (RFC 1918, RFC 4193) and the one shared with providers
// (RFC 6598).
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

func isPrivate(p netip.Prefix) bool {
	return slices.ContainsFunc(private, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

// domainBeforeDeny finds denied private networks that an earlier rule of the tier may open,
// because it allows domain names to some of the same pods, and the owner of a domain chooses
// its addresses. The earlier rule is in the same policy or in one that precedes it.
func domainBeforeDeny(c *cluster) {
	for _, p := range c.policies {
		if !p.admin() || unreadable(p) {
			continue
		}
		earlier := c.earlierRules(p)
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			if d != policy.Egress || r.Action != policy.Deny || !isPrivate(b.Prefix) {
				return
			}
			own := keep(compiledRules(p, d), func(o *policy.Rule) bool { return o.Index < r.Index })
			for _, o := range slices.Concat(earlier, own) {
				if allowsNames(*o) && portsMeet(o, r) {
					c.find(p, blockField(p, d, r, i, k), "", "%v is denied after %s %s has allowed domain names: names that resolve to addresses in it are allowed",
						b.Prefix, o.Policy, ruleField(d, o))
					return
				}
			}
		})
	}
}

// earlierRules returns the egress rules of the policies that precede p in its tier and
// share subjects with it.
func (c *cluster) earlierRules(p *compiled) []*policy.Rule {
	var earlier []*policy.Rule
	for _, o := range c.admins {
		if !unreadable(o) && o.Tier == p.Tier && o.precedes(p) && c.haveSubjectsInCommon(o, p) {
			earlier = append(earlier, compiledRules(o, policy.Egress)...)
		}
	}
	return earlier
}

// domainName finds names that the schema accepts but that no DNS query can contain.
func domainName(c *cluster) {
	for _, p := range c.policies {
		for _, t := range domainNames(p) {
			if problem, fix := domainProblem(t.value); problem != "" {
				c.find(p, t.field, fix, "%q %s", t.value, problem)
			}
		}
	}
}

// domainNames returns all domain names of a policy as written.
func domainNames(p *compiled) []text {
	return adminTexts(p, "domainNames", func(peer proposed.EgressPeer) []v1beta1.DomainName { return peer.DomainNames })
}

// adminTexts returns the values that list selects from the peers of rules in an administrator's
// policy. A NetworkPolicy has none.
func adminTexts[T ~string](p *compiled, field string, list func(proposed.EgressPeer) []T) []text {
	spec := p.Kind.AdminSpec(p.object)
	if spec == nil {
		return nil
	}
	var all []text
	for d, rules := range spec.Rules {
		for i, r := range rules {
			for j, peer := range r.Peers {
				all = append(all, texts(policy.Direction(d), i, j, field, list(peer))...)
			}
		}
	}
	return all
}

func domainProblem(name string) (problem, fix string) {
	host := strings.TrimSuffix(strings.TrimPrefix(name, "*."), ".")
	switch scheme, rest, isURL := strings.Cut(name, "://"); {
	case isURL:
		rest, _, _ = strings.Cut(rest, "/")
		return "is a URL with scheme " + scheme, "Write " + rest + "."
	case isAddress(host):
		return "is an address and not a name", "Use the peer networks."
	case strings.ContainsAny(name, " \t"):
		return "has a space in it", "Write " + strings.Join(strings.Fields(name), "") + "."
	case strings.Contains(name, "/"):
		host, _, _ := strings.Cut(name, "/")
		return "has a path", "Write " + host + "."
	case strings.Contains(name, ":"):
		host, _, _ := strings.Cut(name, ":")
		return "has a port", "Write " + host + ", and the port into the ports of the rule."
	case !strings.Contains(host, ".") && host != "":
		return "has one label only", "Write the full name, as it is asked for after the search list was applied: NAME.NAMESPACE.svc.cluster.local, or NAME.example.com."
	}
	return "", ""
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
