package clusterstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// homes knows on which nodes an address is at home: those with a pod range that has it, or
// else those with the address in their status. Kubelets write the statuses of their own pods
// and of their own Node, but cannot change ranges: a compromised one can claim any address by a
// status, and does not get one that is at home elsewhere (NP-62).
type homes struct {
	own     string                    // the node that enforces: its ranges are its own alone
	ranges  map[string][]netip.Prefix // of each node, none if it has none
	inRange map[netip.Prefix][]string // the nodes with that range
	lengths map[int]int               // how many ranges have this number of bits
	hosts   map[netip.Addr][]string   // the nodes whose status has that address

	// Not all network plugins take addresses from the ranges. A node whose pods mostly have
	// other ones does not use its own, and where most nodes do not, none counts. A node without
	// ranges uses none: its kubelet could write some.
	use   map[family]use
	votes map[bool]int // nodes that use their ranges less those that do not, by whether it is IPv4

	recount bool // the ranges have changed since pods were counted
	changed bool // addresses may be at home elsewhere since they were given to pods
}

// family is the addresses of one family of the pods of a node.
type family struct {
	node string
	is4  bool
}

// use is how many of them are in the ranges of their node, and how many are not.
type use struct{ inside, outside int }

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
		use: map[family]use{}, votes: map[bool]int{},
	}
}

// replace replaces a node. Either may be nil.
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

func remove[K comparable](of map[K][]string, key K, node string) {
	of[key] = slices.DeleteFunc(of[key], func(n string) bool { return n == node })
	if len(of[key]) == 0 {
		delete(of, key)
	}
}

// count adds n for each address of a pod of node to the addresses inside or outside of the node's
// ranges.
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
	before, votes := h.use[f], h.votes[f.is4]
	h.votes[f.is4] += now.vote() - before.vote()
	h.changed = h.changed || (before.vote() < 0) != (now.vote() < 0) || (votes < 0) != (h.votes[f.is4] < 0)
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

// within reports whether ranges have one of the family of addr, and one that has addr.
func within(ranges []netip.Prefix, addr netip.Addr) (ofFamily, inside bool) {
	for _, r := range ranges {
		ofFamily = ofFamily || r.Addr().Is4() == addr.Is4()
		inside = inside || r.Contains(addr)
	}
	return ofFamily, inside
}

// rangeOf returns the nodes with a range that is in use and has addr.
func (h *homes) rangeOf(addr netip.Addr) []string {
	if h.votes[addr.Is4()] < 0 {
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

// mayHavePod reports whether addr may be that of a pod of node.
func (h *homes) mayHavePod(node string, addr netip.Addr) bool {
	if nodes := h.rangeOf(addr); len(nodes) > 0 {
		return slices.Contains(nodes, node)
	}
	return !slices.ContainsFunc(h.hosts[addr], func(host string) bool { return host != node })
}

// mayBe reports whether addr, which the status of node has, may be one of node itself: it is
// in no pod range of another one.
func (h *homes) mayBe(node string, addr netip.Addr) bool {
	nodes := h.rangeOf(addr)
	return len(nodes) == 0 || slices.Contains(nodes, node)
}
