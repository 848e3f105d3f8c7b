package lint

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// blockField returns the path of the k-th block of a peer.
func blockField(p *compiled, d policy.Direction, r *policy.Rule, i, k int) string {
	if p.admin() {
		return fmt.Sprintf("%s.networks[%d]", peerField(d, r, i), k)
	}
	return peerField(d, r, i) + ".ipBlock.cidr"
}

// eachBlock calls f with every block of a policy.
func eachBlock(p *compiled, f func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block)) {
	for d, r := range p.rules {
		for i := range r.Peers {
			for k, b := range r.Peers[i].Blocks {
				f(d, r, i, k, b)
			}
		}
	}
}

// owner is what has an address, and what to write instead, "" for what the rule says.
type owner struct{ name, fix string }

// owners maps each address to the Services or pods that have it and that the current
// rule is about.
func (c *cluster) owners(d policy.Direction) map[netip.Addr]owner {
	if c.rule.ID == "service-address" {
		return c.serviceAddresses(d)
	}
	return c.podAddresses()
}

// serviceAddresses returns the addresses of Services that a packet never has in a direction.
// Clients may have an external address, as load balancers do.
func (c *cluster) serviceAddresses(d policy.Direction) map[netip.Addr]owner {
	owners := map[netip.Addr]owner{}
	for _, s := range c.Services {
		all := reachability.ClusterIPs(s)
		if d == policy.Egress {
			all = reachability.ServiceAddresses(s)
		}
		service := owner{name: fmt.Sprintf("Service %s/%s", s.Namespace, s.Name)}
		if behind := c.Behind[s.Namespace+"/"+s.Name]; len(behind) > 0 && len(s.Spec.Selector) == 0 {
			service.fix = "Allow what is behind the Service: " + exposure.Texts(behind) + "."
		}
		for _, addr := range all {
			owners[addr] = service
		}
	}
	return owners
}

func (c *cluster) podAddresses() map[netip.Addr]owner {
	owners := map[netip.Addr]owner{}
	for _, p := range c.Pods {
		if p.Spec.HostNetwork || compile.Ended(p) {
			continue
		}
		for _, addr := range compile.Addresses(p) {
			owners[addr] = owner{name: fmt.Sprintf("pod %s/%s", p.Namespace, p.Name)}
		}
	}
	return owners
}

// addresses finds blocks that are a single address of a Service or a pod. Each of the two rules
// calls it.
func addresses(c *cluster) {
	owners := [...]map[netip.Addr]owner{policy.Ingress: c.owners(policy.Ingress), policy.Egress: c.owners(policy.Egress)}
	spans := c.serviceSpans()
	for _, p := range c.policies {
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			field := blockField(p, d, r, i, k)
			if has, ok := owners[d][b.Prefix.Addr()]; ok && b.Prefix.IsSingleIP() {
				c.find(p, field, has.fix, "%v is the address of %s", b.Prefix.Addr(), has.name)
			} else if c.rule.ID != "service-address" {
				return
			} else if services := c.serviceCIDR(b.Prefix); services.IsValid() {
				c.find(p, field, "", "%v is in the range of Services %v", b.Prefix, services)
			} else if why := spans[b.Prefix.Addr().Is4()].has(b.Prefix); why != "" {
				c.find(p, field, "", "%v %s", b.Prefix, why)
			}
		})
	}
}

// serviceBits is how many bits of a range of Services are free at most: API servers refuse larger ones.
const serviceBits = 20

// serviceSpan is from the lowest to the highest known address of a Service, of one family.
type serviceSpan struct {
	low, high           netip.Addr
	lowestOf, highestOf string
	apiServer           netip.Addr // the first of the range
}

// serviceSpans returns the spans by whether they are of IPv4, for families without a ServiceCIDR.
func (c *cluster) serviceSpans() map[bool]*serviceSpan {
	spans := map[bool]*serviceSpan{}
	for _, s := range c.Services {
		name := s.Namespace + "/" + s.Name
		for _, addr := range reachability.ClusterIPs(s) {
			span := spans[addr.Is4()]
			if span == nil {
				span = &serviceSpan{low: addr, high: addr, lowestOf: name, highestOf: name}
				spans[addr.Is4()] = span
			}
			if addr.Less(span.low) {
				span.low, span.lowestOf = addr, name
			}
			if span.high.Less(addr) {
				span.high, span.highestOf = addr, name
			}
			if name == "default/kubernetes" {
				span.apiServer = addr
			}
		}
	}
	for _, r := range c.ServiceCIDRs {
		delete(spans, r.Addr().Is4())
	}
	return spans
}

// has says why a block has addresses of Services only, "" if it may have others: the range of
// Services begins before the address of the API server and has all that is between two Services.
func (s *serviceSpan) has(block netip.Prefix) string {
	if s == nil || block.Bits() < block.Addr().BitLen()-serviceBits {
		return ""
	}
	if s.apiServer.IsValid() && block.Addr().Next() == s.apiServer {
		return "is a range of Services: its first address is that of Service default/kubernetes"
	}
	oneRange := netip.PrefixFrom(s.low, s.low.BitLen()-serviceBits).Masked().Contains(s.high)
	if !oneRange || block.Addr().Less(s.low) || s.high.Less(netipx.PrefixLastIP(block)) {
		return ""
	}
	return fmt.Sprintf("is in the range of Services, between the addresses of %s and %s", s.lowestOf, s.highestOf)
}

// serviceCIDR returns the Service range that contains p, or an invalid prefix.
func (c *cluster) serviceCIDR(p netip.Prefix) netip.Prefix {
	for _, s := range c.ServiceCIDRs {
		if s.Bits() <= p.Bits() && s.Contains(p.Addr()) {
			return s
		}
	}
	return netip.Prefix{}
}

func internetIncludesPods(c *cluster) {
	for _, p := range c.policies {
		if p.admin() {
			continue
		}
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			if d == policy.Egress && b.Prefix.Bits() == 0 && len(b.Except) == 0 {
				c.find(p, blockField(p, d, r, i, k), "", "%v includes every pod and node of that family", b.Prefix)
			}
		})
	}
}

// oneFamily finds rules that list all addresses of one family and not those of the other,
// for subjects that have addresses of both.
func oneFamily(c *cluster) {
	whole := map[bool]string{true: "0.0.0.0/0", false: "::/0"}
	for _, p := range c.policies {
		if !slices.ContainsFunc(p.subjects, (*pod).dualStack) {
			continue
		}
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			seen := map[bool]string{} // field of the first such block, by whether it is IPv4
			eachBlock(p, func(direction policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
				if v4 := b.Prefix.Addr().Is4(); direction == d && b.Prefix.Bits() == 0 && seen[v4] == "" {
					seen[v4] = blockField(p, d, r, i, k)
				}
			})
			for v4, field := range seen {
				if seen[!v4] == "" {
					c.find(p, field, fmt.Sprintf("Add an item with %s.", whole[!v4]), "there is %s and no %s, and the pods have addresses of both families", whole[v4], whole[!v4])
				}
			}
		}
	}
}

// exceptReopened finds exceptions that another item allows, in the same policy or in one for all of
// its pods: excepts by a block larger than the except, and NotIn by a selector of more than that. An
// item that allows exactly the exception or a part of it was written for that purpose.
func exceptReopened(c *cluster) {
	for _, p := range c.policies {
		if p.admin() || unreadable(p) {
			continue
		}
		for d, r := range p.rules {
			for i := range r.Peers {
				c.exceptReopened(p, d, r, i)
			}
		}
	}
}

func (c *cluster) exceptReopened(p *compiled, d policy.Direction, r *policy.Rule, i int) {
	for _, b := range r.Peers[i].Blocks {
		for e, except := range b.Except {
			item := c.reopens(p, d, r, func(o *policy.Peer) string {
				for _, other := range o.Blocks {
					if other.Prefix.Bits() < except.Bits() && addressesOf(other).ContainsPrefix(except) {
						return other.Prefix.String()
					}
				}
				return ""
			})
			if item != "" {
				c.find(p, fmt.Sprintf("%s.ipBlock.except[%d]", peerField(d, r, i), e), "", "%v is allowed by %s", except, item)
			}
		}
	}
	for excluded, text := range excludedBy(r.Peers[i].Pods) {
		item := c.reopens(p, d, r, func(o *policy.Peer) string {
			if o.Pods != nil && c.podsInclude(o.Pods, excluded) && !c.podsInclude(excluded, o.Pods) {
				return selectorText(o.Pods)
			}
			return ""
		})
		if item != "" {
			c.find(p, peerField(d, r, i), "", "%s is excluded, and allowed by %s", text, item)
		}
	}
}

// excludedBy yields, for each NotIn of a peer, the selector of the pods that it excludes, and its text.
func excludedBy(s *policy.PodSelector) iter.Seq2[*policy.PodSelector, string] {
	return func(yield func(*policy.PodSelector, string) bool) {
		if s == nil {
			return
		}
		for excluded, text := range withoutNotIn(s.Pods) {
			if !yield(&policy.PodSelector{Namespace: s.Namespace, Namespaces: s.Namespaces, Pods: excluded}, text) {
				return
			}
		}
		if s.Namespace != "" {
			return
		}
		for excluded, text := range withoutNotIn(s.Namespaces) {
			if !yield(&policy.PodSelector{Namespaces: excluded, Pods: s.Pods}, text) {
				return
			}
		}
	}
}

// withoutNotIn yields s with each NotIn turned into the In that it excludes, and the text of that.
func withoutNotIn(s labels.Selector) iter.Seq2[labels.Selector, string] {
	return func(yield func(labels.Selector, string) bool) {
		requirements, _ := s.Requirements()
		for i := range requirements {
			if requirements[i].Operator() != selection.NotIn {
				continue
			}
			in, err := labels.NewRequirement(requirements[i].Key(), selection.In, requirements[i].ValuesUnsorted())
			if err != nil {
				continue
			}
			excluded := slices.Clone(requirements)
			excluded[i] = *in
			if !yield(labels.NewSelector().Add(excluded...), in.String()) {
				return
			}
		}
	}
}

// reopens returns the item that allows an exception of rule r, or "". by says what a peer that does is.
func (c *cluster) reopens(p *compiled, d policy.Direction, r *policy.Rule, by func(*policy.Peer) string) string {
	for _, o := range c.withAllOf(p) {
		for i := range o.Rules(d) {
			other := &o.Rules(d)[i]
			if !portsCovered(r, []*policy.Rule{other}) {
				continue
			}
			if other.AnyPeer {
				return fmt.Sprintf("%s %s, which has no peers", o.ref(), ruleField(d, other))
			}
			for j := range other.Peers {
				if what := by(&other.Peers[j]); what != "" {
					return fmt.Sprintf("%s %s, %s", o.ref(), peerField(d, other, j), what)
				}
			}
		}
	}
	return ""
}

// text is a CIDR or a name as written, and its path.
type text struct{ field, value string }

// cidrs returns all CIDRs of a policy as written.
func cidrs(p *compiled) []text {
	if p.network == nil {
		return adminTexts(p, "networks", func(peer proposed.EgressPeer) []v1beta1.CIDR { return peer.Networks })
	}
	var all []text
	for i, r := range p.network.Spec.Ingress {
		for j, peer := range r.From {
			if peer.IPBlock != nil {
				path := fmt.Sprintf("spec.ingress[%d].from[%d].ipBlock", i, j)
				all = append(all, blockTexts(path, peer.IPBlock.CIDR, peer.IPBlock.Except)...)
			}
		}
	}
	for i, r := range p.network.Spec.Egress {
		for j, peer := range r.To {
			if peer.IPBlock != nil {
				path := fmt.Sprintf("spec.egress[%d].to[%d].ipBlock", i, j)
				all = append(all, blockTexts(path, peer.IPBlock.CIDR, peer.IPBlock.Except)...)
			}
		}
	}
	return all
}

// texts returns the values of a field of a peer of a rule in direction d.
func texts[S ~string](d policy.Direction, rule, peer int, field string, values []S) []text {
	var all []text
	for k, v := range values {
		all = append(all, text{fmt.Sprintf("spec.%s[%d].%s[%d].%s[%d]", d, rule, compile.PeersField(d), peer, field, k), string(v)})
	}
	return all
}

func blockTexts(path, cidr string, excepts []string) []text {
	all := []text{{path + ".cidr", cidr}}
	for k, e := range excepts {
		all = append(all, text{fmt.Sprintf("%s.except[%d]", path, k), e})
	}
	return all
}

func cidrForm(c *cluster) {
	for _, p := range c.policies {
		for _, t := range cidrs(p) {
			if instead, problem := canonical(t.value); problem != "" {
				c.find(p, t.field, fmt.Sprintf("Write %s.", instead), "%s %s, and is read as %s", t.value, problem, instead)
			}
		}
	}
}

// canonical returns the usual form of a CIDR and the problem with the written form. Both
// are empty for a CIDR that cannot be parsed.
func canonical(cidr string) (form, problem string) {
	stripped, zeros := stripZeros(cidr)
	p, err := netip.ParsePrefix(stripped)
	switch {
	case err != nil:
		return "", ""
	case p.Addr().Is4In6() && p.Bits() >= 96:
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked().String(), "is an IPv4-mapped block"
	case zeros:
		return p.Masked().String(), "has leading zeros"
	case p != p.Masked():
		return p.Masked().String(), "has host bits"
	}
	return "", ""
}

// stripZeros removes leading zeros from the numbers of an IPv4 block.
func stripZeros(cidr string) (stripped string, found bool) {
	addr, bits, ok := strings.Cut(cidr, "/")
	if !ok || strings.Contains(addr, ":") {
		return cidr, false
	}
	octets := strings.Split(addr, ".")
	for i, o := range octets {
		if short := strings.TrimLeft(o, "0"); short != o && o != "0" {
			octets[i], found = short, true
			if short == "" {
				octets[i] = "0"
			}
		}
	}
	return strings.Join(octets, ".") + "/" + bits, found
}
