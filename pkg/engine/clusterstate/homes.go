package clusterstate

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// homes tracks on which nodes an address is at home: those with a pod range that contains it, or
// else those with the address in their status. Kubelets write the statuses of their own pods and
// their own Node, but cannot change ranges. A compromised kubelet can claim any address in a
// status, but does not get one that is at home elsewhere (NP-62).
type homes struct {
	own     string                    // the enforcing node; no other node shares its ranges
	ranges  map[string][]netip.Prefix // by node; empty for a node without ranges
	inRange map[netip.Prefix][]string // the nodes with this range
	lengths map[int]int               // the number of ranges with this prefix length
	hosts   map[netip.Addr][]string   // the nodes whose status has this address

	// Not all network plugins take addresses from the ranges. A node whose pods mostly have other
	// addresses does not use its ranges, and if most nodes do not use theirs, no ranges count. A
	// node without ranges does not take part, because its kubelet could write some.
	use   map[family]use
	votes map[bool]votes // by address family: true for IPv4

	recount bool // the ranges have changed since pods were counted
	changed bool // homes may have changed since addresses were settled
}

// family identifies the addresses of one family of a node's pods.
type family struct {
	node string
	is4  bool
}

// use counts these addresses inside and outside of the node's ranges.
type use struct{ inside, outside int }

// votes counts the nodes with pods that use their ranges, and those that do not.
type votes struct{ yes, no int }

// add adds n votes of the same kind.
func (v *votes) add(vote, n int) {
	switch {
	case vote > 0:
		v.yes += n
	case vote < 0:
		v.no += n
	}
}

// result is everything that decisions depend on, including those that leave out one node's vote.
// Votes with equal results decide the same.
func (v votes) result() [3]int {
	return [3]int{cmp.Compare(v.yes, v.no), min(v.yes, 2), min(v.no, 2)}
}

// vote returns 1 if the ranges are in use, -1 if they are not, and 0 without pods.
func (u use) vote() int {
	switch {
	case u == use{}:
		return 0
	case u.outside > u.inside:
		return -1
	}
	return 1
}

func newHomes(own string) homes {
	return homes{
		own:    own,
		ranges: map[string][]netip.Prefix{}, inRange: map[netip.Prefix][]string{}, lengths: map[int]int{}, hosts: map[netip.Addr][]string{},
		use: map[family]use{}, votes: map[bool]votes{},
	}
}

// replace replaces a node. old and now may be nil.
func (h *homes) replace(old, now *compile.Node) {
	existed, exists := old != nil, now != nil
	if !existed {
		old = &compile.Node{}
	}
	if !exists {
		now = &compile.Node{}
	}
	if existed != exists || !slices.Equal(old.PodRanges, now.PodRanges) {
		for _, r := range old.PodRanges {
			remove(h.inRange, r, old.Name)
			h.lengths[r.Bits()]--
		}
		for _, r := range now.PodRanges {
			h.inRange[r] = append(h.inRange[r], now.Name)
			h.lengths[r.Bits()]++
		}
		delete(h.ranges, old.Name)
		if exists {
			h.ranges[now.Name] = now.PodRanges
		}
		h.recount, h.changed = true, true
	}
	if !slices.Equal(old.Addrs, now.Addrs) {
		for _, a := range old.Addrs {
			remove(h.hosts, a, old.Name)
		}
		for _, a := range now.Addrs {
			h.hosts[a] = append(h.hosts[a], now.Name)
		}
		h.changed = true
	}
}

func remove[K comparable](nodesBy map[K][]string, key K, node string) {
	nodesBy[key] = slices.DeleteFunc(nodesBy[key], func(n string) bool { return n == node })
	if len(nodesBy[key]) == 0 {
		delete(nodesBy, key)
	}
}

// count adds n to the inside or outside count of node for each address of a pod.
func (h *homes) count(node string, addrs []netip.Addr, n int) {
	ranges, known := h.ranges[node]
	if !known {
		return
	}
	for _, addr := range addrs {
		_, inside := within(ranges, addr)
		f := family{node, addr.Is4()}
		u := h.use[f]
		if inside {
			u.inside += n
		} else {
			u.outside += n
		}
		h.setUse(f, u)
	}
}

func (h *homes) setUse(f family, now use) {
	before, votes := h.use[f].vote(), h.votes[f.is4]
	counted := votes
	counted.add(before, -1)
	counted.add(now.vote(), +1)
	h.votes[f.is4] = counted
	h.changed = h.changed || (before < 0) != (now.vote() < 0) || votes.result() != counted.result()
	if now == (use{}) {
		delete(h.use, f)
	} else {
		h.use[f] = now
	}
}

// forget drops what was counted.
func (h *homes) forget() {
	clear(h.use)
	clear(h.votes)
	h.recount = false
}

// within reports whether ranges include one of addr's family, and one that contains addr.
func within(ranges []netip.Prefix, addr netip.Addr) (ofFamily, inside bool) {
	for _, r := range ranges {
		ofFamily = ofFamily || r.Addr().Is4() == addr.Is4()
		inside = inside || r.Contains(addr)
	}
	return ofFamily, inside
}

// rangeOf returns the nodes with a range that is in use and contains addr.
func (h *homes) rangeOf(addr netip.Addr) []string {
	if v := h.votes[addr.Is4()]; v.yes < v.no {
		return nil
	}
	var nodes []string
	for bits, n := range h.lengths {
		if n == 0 || bits > addr.BitLen() {
			continue
		}
		r, _ := addr.Prefix(bits)
		for _, node := range h.inRange[r] {
			if h.use[family{node, addr.Is4()}].vote() >= 0 {
				nodes = append(nodes, node)
			}
		}
	}
	if slices.Contains(nodes, h.own) {
		return []string{h.own}
	}
	return nodes
}

// mayHavePod reports whether addr may belong to a pod of node.
func (h *homes) mayHavePod(node string, addr netip.Addr) bool {
	if nodes := h.rangeOf(addr); len(nodes) > 0 {
		return slices.Contains(nodes, node)
	}
	if hosts := h.hosts[addr]; len(hosts) > 0 {
		return !slices.ContainsFunc(hosts, func(host string) bool { return host != node })
	}
	return !h.allUseRanges(node, addr)
}

// allUseRanges reports whether node has a range of addr's family and the pods of all other nodes
// take their addresses from ranges: then no pod has an address outside of all ranges. The pods of
// node do not count, because its kubelet writes their statuses.
func (h *homes) allUseRanges(node string, addr netip.Addr) bool {
	v := h.votes[addr.Is4()]
	v.add(h.use[family{node, addr.Is4()}].vote(), -1)
	ofFamily, _ := within(h.ranges[node], addr)
	return ofFamily && v.yes > 0 && v.no == 0
}

// mayBe reports whether addr, from the status of node, may be its own: whether no pod range of
// another node contains it.
func (h *homes) mayBe(node string, addr netip.Addr) bool {
	nodes := h.rangeOf(addr)
	return len(nodes) == 0 || slices.Contains(nodes, node)
}
