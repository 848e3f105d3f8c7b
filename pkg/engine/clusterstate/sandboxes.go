package clusterstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/cri"
)

// Sandbox is cri.Sandbox.
type Sandbox = cri.Sandbox

// SetSandboxes replaces the sandboxes of this node, newest first. It keeps the slice and reports
// whether verdicts may change. Sandboxes of unknown pods, of pods of other nodes and of
// host-network pods are ignored.
func (c *Cluster) SetSandboxes(newestFirst []Sandbox) bool {
	c.sandboxes = newestFirst
	return c.announce()
}

// Rerouted says that the node's routes may have changed. It reports whether verdicts may change.
func (c *Cluster) Rerouted() bool { return c.addresses.reroute(c.podOf) }

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

// SetSandboxesOf replaces the sandboxes of another node, newest first, as the agent there reports them.
// It reports whether verdicts may change. The pod has to be known, to have that UID and to run on that
// node. A report counts less than a status: the pod's own has no address yet, no other has this one, and
// it is not in the range of another node or the address of one.
func (c *Cluster) SetSandboxesOf(node string, newestFirst []Sandbox) (changed bool) {
	before := c.reports[node]
	now := make(map[podKey]Sandbox, len(newestFirst))
	for _, s := range newestFirst {
		key := podKey{s.Namespace, s.Name}
		if _, newer := now[key]; !newer {
			now[key] = s
		}
	}
	c.reports[node] = now
	if len(now) == 0 {
		delete(c.reports, node)
	}
	for key := range now {
		changed = c.applyReport(key, node) || changed
	}
	for key := range before {
		if _, again := now[key]; !again {
			changed = c.applyReport(key, node) || changed
		}
	}
	return changed
}

// applyReport gives a pod the addresses that the agent of its node reports, and reports whether they are
// others than before.
func (c *Cluster) applyReport(key podKey, node string) bool {
	ns := c.namespaces[key.namespace]
	if ns == nil || ns.pods[key.name] == nil || ns.pods[key.name].Node != node {
		return false
	}
	old := ns.pods[key.name]
	now := *old
	now.Announced = c.reportedAddresses(&now)
	if slices.Equal(old.Announced, now.Announced) {
		return false
	}
	c.replacePod(old, &now)
	return true
}

// reportedAddresses returns what the agent of a pod's node reports of its addresses.
func (c *Cluster) reportedAddresses(p *compile.Pod) []netip.Addr {
	s, reported := c.reports[p.Node][keyOf(p)]
	if !reported || s.UID != p.UID || !p.OwnNetwork || len(p.Addrs) > 0 || c.cfg.enforces(p.Node) {
		return nil
	}
	homes := &c.addresses.homes
	return slices.DeleteFunc(slices.Clone(s.Addrs), func(a netip.Addr) bool { return homes.isForeign(p.Node, a) || homes.hasOtherHost(p.Node, a) })
}

// NodesAt returns the other nodes that may have a new pod at addr: those with a pod range that contains
// it. If none of these has a pod without an address, they are those with such a pod as well.
func (c *Cluster) NodesAt(addr netip.Addr) []string {
	if c.addresses.homes.isOwn(addr) {
		return nil
	}
	nodes := c.addresses.homes.rangeOf(addr)
	var more []string
	for key := range c.newcomers {
		switch node := c.pod(key).Node; {
		case slices.Contains(nodes, node):
			return nodes
		case !slices.Contains(more, node):
			more = append(more, node)
		}
	}
	return append(nodes, more...)
}

// standing is how well it is known that a sandbox exists.
type standing uint8

const (
	proven    standing = iota // by interfaces and routes
	confirmed                 // by the pod's status
	newest                    // by nothing but the order
)

// standingOf returns the standing of s, a sandbox of p.
func standingOf(s *Sandbox, p *compile.Pod) standing {
	shown := func(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }
	other := func(a netip.Addr) bool { // an address of the status that replaces one of the family
		return !slices.Contains(s.Addrs, a) && slices.ContainsFunc(s.Addrs, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
	}
	switch {
	case s.Proven:
		return proven
	case slices.ContainsFunc(s.Addrs, shown) && !slices.ContainsFunc(p.Addrs, other):
		return confirmed
	}
	return newest
}

// currentSandboxes returns the addresses of the best sandbox of each pod of this node, and for
// each address the pod whose sandbox is the best with it: other sandboxes with the address are
// gone. The newest is the best of those with the same standing. It records pods of which a newer
// sandbox is not the best, because the order of sandboxes is then wrong.
func (c *Cluster) currentSandboxes() (addrs map[podKey][]netip.Addr, holders map[netip.Addr]podKey) {
	addrs, holders, c.misordered = map[podKey][]netip.Addr{}, map[netip.Addr]podKey{}, nil
	var own [newest + 1][]int // by standing
	for i := range c.sandboxes {
		s := &c.sandboxes[i]
		key := podKey{s.Namespace, s.Name}
		if !c.local[key] {
			continue
		}
		if p := c.pod(key); p.UID == s.UID && p.OwnNetwork {
			own[standingOf(s, p)] = append(own[standingOf(s, p)], i)
		}
	}
	best := map[podKey]int{}
	held := map[netip.Addr]int{}
	for _, i := range slices.Concat(own[:]...) {
		s := &c.sandboxes[i]
		key := podKey{s.Namespace, s.Name}
		if better, known := best[key]; known {
			c.noteOrder(key, i < better)
			continue
		}
		best[key], addrs[key] = i, s.Addrs
		for _, a := range s.Addrs {
			better, known := held[a]
			if !known {
				held[a], holders[a] = i, key
			}
			c.noteOrder(key, known && i < better)
		}
	}
	return addrs, holders
}

func (c *Cluster) noteOrder(key podKey, wrong bool) {
	if name := key.namespace + "/" + key.name; wrong && !slices.Contains(c.misordered, name) {
		c.misordered = append(c.misordered, name)
	}
}

// Misordered returns the pods of this node with a sandbox that is not believed though it is newer than
// one that is, as of the last snapshot or change of sandboxes.
func (c *Cluster) Misordered() []string { return c.misordered }

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
