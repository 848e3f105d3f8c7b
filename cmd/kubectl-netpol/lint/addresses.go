package lint

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	netutils "k8s.io/utils/net"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
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
	for _, p := range c.policies {
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			field := blockField(p, d, r, i, k)
			if has, ok := owners[d][b.Prefix.Addr()]; ok && b.Prefix.IsSingleIP() {
				c.find(p, field, has.fix, "%v is the address of %s", b.Prefix.Addr(), has.name)
			} else if c.rule.ID != "service-address" {
				return
			} else if services := c.serviceCIDR(b.Prefix); services.IsValid() {
				c.find(p, field, "", "%v is in the range of Services %v", b.Prefix, services)
			}
		})
	}
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

// cidrForm finds the blocks in a policy as it is written that are read as others. No other text of a
// spec has the form of a block.
func cidrForm(c *cluster) {
	for _, p := range c.policies {
		fields, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(p.object) // a policy always has fields
		eachText("spec", fields["spec"], func(field, text string) {
			_, read, err := netutils.ParseCIDRSloppy(text)
			if written, errStrict := netip.ParsePrefix(text); err == nil && (errStrict != nil || written != written.Masked() || written.Addr().Is4In6()) {
				c.find(p, field, fmt.Sprintf("Write %s.", read), "%s is read as %s", text, read)
			}
		})
	}
}

// eachText calls f with every text at and below a field, and its path.
func eachText(path string, value any, f func(path, text string)) {
	switch value := value.(type) {
	case string:
		f(path, value)
	case []any:
		for i, item := range value {
			eachText(fmt.Sprintf("%s[%d]", path, i), item, f)
		}
	case map[string]any:
		for key, item := range value {
			eachText(path+"."+key, item, f)
		}
	}
}
