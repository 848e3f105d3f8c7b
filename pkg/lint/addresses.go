package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// blockField is the path of the k-th block of a peer.
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

// addresses finds blocks that are one address of a Service, a pod or a node. It is
// called for each of these rules.
func addresses(c *cluster) {
	owners := map[netip.Addr]string{}
	switch c.rule.ID {
	case "service-address":
		for _, s := range c.Services {
			for _, ip := range append(slices.Clone(s.Spec.ClusterIPs), s.Spec.ClusterIP) {
				if addr, err := netip.ParseAddr(ip); err == nil {
					owners[addr.Unmap()] = fmt.Sprintf("Service %s/%s", s.Namespace, s.Name)
				}
			}
		}
	case "pod-address":
		for _, o := range c.Pods {
			if o.Spec.HostNetwork || compile.Ended(o) {
				continue
			}
			for _, addr := range compile.Addresses(o) {
				owners[addr] = fmt.Sprintf("pod %s/%s", o.Namespace, o.Name)
			}
		}
	case "node-address":
		for _, n := range c.Nodes {
			for _, addr := range compile.NewNode(n).Addrs {
				owners[addr] = "node " + n.Name
			}
		}
	}
	for _, p := range c.policies {
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			field := blockField(p, d, r, i, k)
			if owner := owners[b.Prefix.Addr()]; owner != "" && b.Prefix.IsSingleIP() {
				c.find(p, field, "", "%v is the address of %s", b.Prefix.Addr(), owner)
			} else if services := c.serviceCIDR(b.Prefix); services.IsValid() && c.rule.ID == "service-address" {
				c.find(p, field, "", "%v is in the range of Services %v", b.Prefix, services)
			}
		})
	}
}

// serviceCIDR returns the range of Services that has all of p, an invalid prefix if
// none has.
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

// oneFamily finds rules with a block of all addresses of one family and none of the
// other, for subjects that have both.
func oneFamily(c *cluster) {
	whole := map[bool]string{true: "0.0.0.0/0", false: "::/0"}
	for _, p := range c.policies {
		if !slices.ContainsFunc(p.subjects, (*pod).dualStack) {
			continue
		}
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			seen := map[bool]string{} // field of the first such block, by whether it is IPv4
			eachBlock(p, func(at policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
				if v4 := b.Prefix.Addr().Is4(); at == d && b.Prefix.Bits() == 0 && seen[v4] == "" {
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

// exceptReopened finds excepts that an item of the same policy, or of another one for
// all of these pods, allows with more around it. One that allows exactly the except, or
// a part of it, is written for it.
func exceptReopened(c *cluster) {
	for _, p := range c.policies {
		if p.admin() || unreadable(p) {
			continue
		}
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			for e, except := range b.Except {
				if by := c.reopens(p, d, r, except); by != "" {
					c.find(p, fmt.Sprintf("%s.ipBlock.except[%d]", peerField(d, r, i), e), "", "%v is allowed by %s", except, by)
				}
			}
		})
	}
}

// reopens returns the item that allows an except of rule r.
func (c *cluster) reopens(p *compiled, d policy.Direction, r *policy.Rule, except netip.Prefix) string {
	for _, o := range c.policies {
		if o.admin() || unreadable(o) || o.Ref.Namespace != p.Ref.Namespace || !o.selectsAllOf(p) {
			continue
		}
		for i := range o.Rules(d) {
			other := &o.Rules(d)[i]
			if !portsCovered(r, []*policy.Rule{other}) {
				continue
			}
			if other.AnyPeer {
				return fmt.Sprintf("%s %s, which has no peers", o.ref(), ruleField(d, other))
			}
			for j := range other.Peers {
				for _, b := range other.Peers[j].Blocks {
					if b.Prefix.Bits() < except.Bits() && blocksInclude([]policy.Block{b}, policy.Block{Prefix: except}) {
						return fmt.Sprintf("%s %s, %v", o.ref(), peerField(d, other, j), b.Prefix)
					}
				}
			}
		}
	}
	return ""
}

// text is a CIDR or a name as it is written, and where.
type text struct{ field, value string }

// cidrs returns all CIDRs of a policy as they are written.
func cidrs(p *compiled) []text {
	if p.network == nil {
		return egressTexts(p, "networks", func(peer v1alpha2.ClusterNetworkPolicyEgressPeer) []v1alpha2.CIDR { return peer.Networks })
	}
	var all []text
	for i, r := range p.network.Spec.Ingress {
		for j, peer := range r.From {
			if peer.IPBlock != nil {
				at := fmt.Sprintf("spec.ingress[%d].from[%d].ipBlock", i, j)
				all = append(all, blockTexts(at, peer.IPBlock.CIDR, peer.IPBlock.Except)...)
			}
		}
	}
	for i, r := range p.network.Spec.Egress {
		for j, peer := range r.To {
			if peer.IPBlock != nil {
				at := fmt.Sprintf("spec.egress[%d].to[%d].ipBlock", i, j)
				all = append(all, blockTexts(at, peer.IPBlock.CIDR, peer.IPBlock.Except)...)
			}
		}
	}
	return all
}

func texts[S ~string](rule, peer int, field string, values []S) []text {
	var all []text
	for k, v := range values {
		all = append(all, text{fmt.Sprintf("spec.egress[%d].to[%d].%s[%d]", rule, peer, field, k), string(v)})
	}
	return all
}

func blockTexts(at, cidr string, excepts []string) []text {
	all := []text{{at + ".cidr", cidr}}
	for k, e := range excepts {
		all = append(all, text{fmt.Sprintf("%s.except[%d]", at, k), e})
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

// canonical returns the usual form of a CIDR and what is unusual about it, if it can be
// read at all.
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

// stripZeros removes the leading zeros of the numbers of an IPv4 block.
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
