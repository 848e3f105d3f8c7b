package clusterstate

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Sandbox is the network that the node has made for a pod, which the node knows before
// the status of the pod has it (NP-60).
type Sandbox struct {
	Namespace, Name string
	UID             types.UID
	Addrs           []netip.Addr
}

// SetSandboxes replaces the sandboxes of this node, of which the newest is first. It
// keeps them, and reports whether verdicts can differ by it. Sandboxes of pods that are
// not known, not of this node, or of the node's own network mean nothing.
func (c *Cluster) SetSandboxes(newestFirst []Sandbox) bool {
	c.sandboxes = newestFirst
	return c.announce()
}

// announce gives the pods of this node the addresses of their sandboxes. It reports
// whether any has changed. Of the sandboxes of one pod the newest counts: the others are
// gone. Of those with one address, too.
func (c *Cluster) announce() (changed bool) {
	c.unannounced = false
	announced := make(map[podKey][]netip.Addr)
	taken := make(map[netip.Addr]bool)
	for _, s := range c.sandboxes {
		key := podKey{s.Namespace, s.Name}
		if _, older := announced[key]; older || !c.local[key] {
			continue
		}
		if p := c.pod(key); p.UID != s.UID || !p.OwnNetwork {
			continue
		}
		announced[key] = []netip.Addr{}
		for _, addr := range s.Addrs {
			if !taken[addr] {
				announced[key], taken[addr] = append(announced[key], addr), true
			}
		}
	}
	for key := range c.local {
		old := c.pod(key)
		if slices.Equal(old.Announced, announced[key]) {
			continue
		}
		now := *old
		now.Announced = announced[key]
		c.replacePod(old, &now)
		c.stale[key], c.localPods, changed = true, nil, true
	}
	return changed
}

// awaitsStatus reports whether packets of p, a pod of this node, may have to wait until
// its status has its addresses (CN-35): other nodes do not know them before, and there
// an administrator's rule may deny what p sends, by its labels.
func (c *Cluster) awaitsStatus(p *compile.Pod) bool {
	return len(p.Addrs) == 0 && len(p.Announced) > 0 && c.stopsFrom(&p.Endpoint)
}

// stopsFrom reports whether some policy that is enforced denies or passes what the pod e
// sends, because of its labels.
func (c *Cluster) stopsFrom(e *policy.Endpoint) bool {
	return slices.ContainsFunc(c.policies, func(p compiled) bool { return !p.audited && p.stopsFrom(e) })
}

// stopsFrom reports whether some rule of ingress denies or passes what the pod e sends,
// because of its labels.
func (p compiled) stopsFrom(e *policy.Endpoint) bool {
	return p.stopsPods[policy.Ingress] && slices.ContainsFunc(p.Rules(policy.Ingress), func(r policy.Rule) bool {
		return r.Action != policy.Allow && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool {
			return peer.Pods != nil && peer.Pods.Selects(e)
		})
	})
}
