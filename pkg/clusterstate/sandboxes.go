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

// announce gives the pods of this node the addresses of their sandboxes, and notes which
// addresses of their statuses are outdated. It reports whether any of it has changed.
func (c *Cluster) announce() (changed bool) {
	c.unannounced = false
	sandboxes, holders := c.currentSandboxes()
	for key := range c.local {
		old := c.pod(key)
		announced := slices.DeleteFunc(slices.Clone(sandboxes[key]), func(a netip.Addr) bool { return holders[a] != key })
		outdated := slices.DeleteFunc(slices.Clone(old.Addrs), func(a netip.Addr) bool {
			holder, held := holders[a]
			return holder == key || !held && !slices.ContainsFunc(sandboxes[key], func(s netip.Addr) bool { return s.Is4() == a.Is4() })
		})
		if slices.Equal(old.Announced, announced) && slices.Equal(old.Outdated, outdated) {
			continue
		}
		now := *old
		now.Announced, now.Outdated = announced, outdated
		c.replacePod(old, &now)
		c.stale[key], c.localPods, changed = true, nil, true
	}
	return changed
}

// currentSandboxes returns the addresses of the newest sandbox of each pod of this node, and
// for each address the pod of the newest of these sandboxes: the others with it are gone.
func (c *Cluster) currentSandboxes() (addrs map[podKey][]netip.Addr, holders map[netip.Addr]podKey) {
	addrs, holders = map[podKey][]netip.Addr{}, map[netip.Addr]podKey{}
	for _, s := range c.sandboxes {
		key := podKey{s.Namespace, s.Name}
		if _, older := addrs[key]; older || !c.local[key] {
			continue
		}
		if p := c.pod(key); p.UID != s.UID || !p.OwnNetwork {
			continue
		}
		addrs[key] = s.Addrs
		for _, a := range s.Addrs {
			if _, older := holders[a]; !older {
				holders[a] = key
			}
		}
	}
	return addrs, holders
}

// Elsewhere returns a pod of another node that this machine has made a sandbox for, and that
// node, if no sandbox is one of a pod of this node: then NodeName is the name of another
// machine. A pod never changes its node.
func (c *Cluster) Elsewhere() (pod, node string) {
	for _, s := range c.sandboxes {
		ns := c.namespaces[s.Namespace]
		if c.local[podKey{s.Namespace, s.Name}] {
			return "", ""
		}
		if ns == nil || pod != "" {
			continue
		}
		if p := ns.pods[s.Name]; p != nil && p.UID == s.UID && p.UID != "" && p.Node != "" {
			pod, node = s.Namespace+"/"+s.Name, p.Node
		}
	}
	return pod, node
}

// awaitsStatus reports whether packets of p, a pod of this node, may have to wait until
// its status has its addresses (CN-35): other nodes do not know them before, and there
// an administrator's rule may deny what p sends, by its labels.
func (c *Cluster) awaitsStatus(p *compile.Pod) bool {
	return isAheadOfStatus(p) && c.stopsFrom(&p.Endpoint)
}

// isAheadOfStatus reports whether the status of p has none of the addresses that its sandbox
// has in one family. The status need not have all of them.
func isAheadOfStatus(p *compile.Pod) bool {
	return slices.ContainsFunc(p.Announced, func(a netip.Addr) bool {
		return !slices.ContainsFunc(p.Addrs, func(s netip.Addr) bool { return s.Is4() == a.Is4() && slices.Contains(p.Announced, s) })
	})
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
