package clusterstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// unknown returns the addresses and pods that are not known.
func (c *Cluster) unknown() policy.Unknown {
	u := c.derived.unknown
	u.Ranges = c.addresses.addUnknown(u.Ranges)
	for key := range c.newcomers {
		if len(u.Newcomers) > policy.MaxNewcomers {
			break
		}
		u.Newcomers = append(u.Newcomers, &c.pod(key).Endpoint)
	}
	return u
}

// addUnknown returns ranges plus the addresses of unknown pods of this node outside of them.
func (a *addresses) addUnknown(ranges []netip.Prefix) []netip.Prefix {
	all := slices.Clip(ranges)
	for addr := range a.unknown {
		if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(addr) }) {
			all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	slices.SortFunc(all[len(ranges):], netip.Prefix.Compare)
	return all
}

// withholds reports whether p owns no address because its namespace is not known.
func (a *addresses) withholds(p *compile.Pod) bool {
	return a.awaitNamespaces && !p.Endpoint.NamespaceLabels.Known()
}

// followNewcomer records whether the pod with that key, nil if it is gone, runs on another node and
// has no address yet.
func (c *Cluster) followNewcomer(key podKey, p *compile.Pod) {
	if p != nil && p.OwnNetwork && len(p.Claims()) == 0 && p.Node != "" && !c.cfg.enforces(p.Node) {
		c.newcomers[key] = true
	} else {
		delete(c.newcomers, key)
	}
}

// awaitsStatus reports whether packets of p, a pod of this node, may have to wait until its status
// has its addresses (CN-35): before that, other nodes cannot apply an administrator's rule that may
// deny p's packets by its labels.
func (c *Cluster) awaitsStatus(p *compile.Pod) bool {
	return isAheadOfStatus(p) && c.stopsFrom(&p.Endpoint)
}

// isAheadOfStatus reports whether the sandbox of p has a family of addresses that the status shows
// none of. The status need not show all addresses.
func isAheadOfStatus(p *compile.Pod) bool {
	return slices.ContainsFunc(p.Announced, func(a netip.Addr) bool {
		return !slices.ContainsFunc(p.Addrs, func(s netip.Addr) bool { return s.Is4() == a.Is4() && slices.Contains(p.Announced, s) })
	})
}

// stopsFrom reports whether some enforced policy denies or passes packets from pod e because of its
// labels.
func (c *Cluster) stopsFrom(e *policy.Endpoint) bool {
	return slices.ContainsFunc(c.policies, func(p compiled) bool { return !p.audited && p.stopsFrom(e) })
}

// stopsFrom reports whether some ingress rule denies or passes packets from pod e because of its
// labels.
func (p compiled) stopsFrom(e *policy.Endpoint) bool {
	return p.stopsPods[policy.Ingress] && slices.ContainsFunc(p.Rules(policy.Ingress), func(r policy.Rule) bool {
		return r.Action != policy.Allow && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool {
			return peer.Pods != nil && peer.Pods.Selects(e)
		})
	})
}
