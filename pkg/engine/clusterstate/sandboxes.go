package clusterstate

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Sandbox is the network that the node has made for a pod. The node knows it before the pod's
// status shows it (NP-60).
type Sandbox struct {
	Namespace, Name string
	UID             types.UID
	Addrs           []netip.Addr
}

// SetSandboxes replaces the sandboxes of this node, newest first. It keeps the slice and reports
// whether verdicts may change. Sandboxes of unknown pods, of pods of other nodes and of
// host-network pods are ignored.
func (c *Cluster) SetSandboxes(newestFirst []Sandbox) bool {
	c.sandboxes = newestFirst
	return c.announce()
}

// announce gives the pods of this node the addresses of their sandboxes and records which addresses
// of their statuses are outdated. It reports whether anything changed.
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

// currentSandboxes returns the addresses of the newest sandbox of each pod of this node, and for
// each address the pod whose sandbox is the newest with it: older sandboxes with the address are
// gone.
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

// Elsewhere returns a pod of another node that has a sandbox on this machine, and that node, if no
// pod of this node has one. Then NodeName is wrong: it names another machine, because a pod never
// changes its node.
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
