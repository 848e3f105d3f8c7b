package reachability

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// A pod with a placeholder for an address may have any address of some ranges. Policies divide these
// by their blocks into places. The pod is one endpoint for each place: its placeholder says which pod
// it is, an address of the place which blocks contain it.

// privateRanges are the ranges that clusters give to pods (RFC 1918, RFC 4193).
var privateRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("fd00::/8"),
}

// PodRanges returns the ranges in which pods with placeholders are: the stated ones, else those of
// the Nodes in the inputs, else the private ones, for each family.
func PodRanges(stated []netip.Prefix, inputs ...clusterstate.Input) []netip.Prefix {
	var ofNodes []netip.Prefix
	for _, in := range inputs {
		for _, n := range in.Nodes {
			for _, text := range append(slices.Clone(n.Spec.PodCIDRs), n.Spec.PodCIDR) {
				if r, err := netip.ParsePrefix(text); err == nil {
					ofNodes = append(ofNodes, r.Masked())
				}
			}
		}
	}
	slices.SortFunc(ofNodes, netip.Prefix.Compare)
	var ranges []netip.Prefix
	for _, is4 := range []bool{true, false} {
		for _, all := range [][]netip.Prefix{stated, slices.Compact(ofNodes), privateRanges} {
			of := slices.DeleteFunc(slices.Clone(all), func(r netip.Prefix) bool { return r.Addr().Is4() != is4 })
			ranges = append(ranges, of...)
			if len(of) > 0 {
				break
			}
		}
	}
	return ranges
}

// spot is a place of one family.
type spot struct {
	addr netip.Addr // one that nothing has
	name string     // the first ranges
}

// places are the spots of pods and of host-network pods, each by family.
type places struct{ pods, hosts [2][]spot }

// placesOf returns the places that the policies of some clusters distinguish.
func placesOf(clusters ...*Cluster) *places {
	inputs := make([]clusterstate.Input, len(clusters))
	for i, c := range clusters {
		inputs[i] = c.in
	}
	blocks := blocksOf(clusters)
	return &places{
		pods:  spotsIn(PodRanges(clusters[0].stated, inputs...), blocks, clusters),
		hosts: spotsIn(privateRanges, blocks, clusters),
	}
}

func spotsIn(ranges []netip.Prefix, blocks *bart.Lite, clusters []*Cluster) (found [2][]spot) {
	within := &bart.Lite{}
	for _, r := range ranges {
		within.Insert(r)
	}
	order, byBlock := partition(blocks, within, func(start netip.Addr) bool { return within.Lookup(start) })
	for _, key := range order {
		if addr, ok := freeAddress(byBlock[key], clusters); ok {
			family := 0
			if addr.Is6() {
				family = 1
			}
			found[family] = append(found[family], spot{addr, rangesName(byBlock[key])})
		}
	}
	return found
}

// freeAddress returns an address of some ranges that no pod and no node has.
func freeAddress(ranges []netipx.IPRange, clusters []*Cluster) (netip.Addr, bool) {
	const tries = 1 << 16
	taken := func(a netip.Addr) bool {
		return slices.ContainsFunc(clusters, func(c *Cluster) bool { return c.owners[a] || c.nodes[a] != "" })
	}
	for _, r := range ranges {
		a := r.From()
		for i := 0; i < tries && r.Contains(a); i++ {
			if !taken(a) {
				return a, true
			}
			a = a.Next()
		}
	}
	return netip.Addr{}, false
}

// at returns an endpoint at each of the places where it may be.
func (p *places) at(e Endpoint) []Endpoint {
	if !workloads.IsPlaceholder(e.first()) {
		return []Endpoint{e}
	}
	spots := p.pods
	if e.onHost() {
		spots = p.hosts
	}
	e.placeholder = e.first()
	for family, addr := range []netip.Addr{e.v4, e.v6} {
		if !addr.IsValid() || len(spots[family]) == 0 {
			spots[family] = []spot{{addr: addr}}
		}
	}
	all := make([]Endpoint, max(len(spots[0]), len(spots[1])))
	for i := range all {
		of4, of6 := spots[0][i%len(spots[0])], spots[1][i%len(spots[1])]
		e.v4, e.v6, e.places = of4.addr, of6.addr, len(all)
		switch {
		case len(spots[1]) == 1 && of4.name != "":
			e.place = of4.name
		case len(spots[0]) == 1:
			e.place = of6.name
		default:
			e.place = and(of4.name, of6.name)
		}
		all[i], all[i].another = e, i > 0
	}
	return all
}

func and(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " and " + b
}

// Label returns the name, with the place of an endpoint that may be at several.
func (s *Endpoint) Label() string {
	if s.places > 1 {
		return fmt.Sprintf("%s (if in %s)", s.Name, s.place)
	}
	return s.Name
}

// knownAt returns the address by which the cluster knows the pod that has a.
func (s *Endpoint) knownAt(a netip.Addr) netip.Addr {
	if s.placeholder.IsValid() {
		return s.placeholder
	}
	return a
}

// snapshotFor returns the snapshot that evaluates q. That of placeholders has no ranges of pods: an
// unknown address in one would be that of an unknown pod.
func (c *Cluster) snapshotFor(q *policy.Query) *policy.Snapshot {
	if q.Sender.IsValid() || q.Receiver.IsValid() {
		return c.withoutRanges()
	}
	return c.snapshot
}

// compileWithoutRanges compiles the cluster as if its Nodes had no ranges of pods.
func (c *Cluster) compileWithoutRanges() *policy.Snapshot {
	in := c.in
	in.Nodes = make([]*corev1.Node, len(c.in.Nodes))
	ranges := false
	for i, n := range c.in.Nodes {
		ranges = ranges || n.Spec.PodCIDR != "" || len(n.Spec.PodCIDRs) > 0
		node := *n
		node.Spec.PodCIDR, node.Spec.PodCIDRs = "", nil
		in.Nodes[i] = &node
	}
	if !ranges {
		return c.snapshot
	}
	s := clusterstate.Compile(in)
	if c.enforced {
		return s.Audit()
	}
	return s
}

// Depends explains how the answer about a connection depends on where its ends are. It returns nil if
// the answer is the same at all places where src and dst may be.
func (c *Cluster) Depends(src, dst *Endpoint, port Port, family Family) []string {
	var all []result
	c.EachPlace(src, dst, func(from, to *Endpoint) {
		all = append(all, result{*from, *to, c.Evaluate(from, to, port, family).Allowed})
	})
	return dependence(all, "allowed", "denied")
}

// result is an answer about two ends at places where they may be.
type result struct {
	from, to Endpoint
	yes      bool
}

// decisive reports whether the place of the source, and that of the destination, make a difference.
func decisive(all []result) (bySource, byDestination bool) {
	for i := range all {
		for j := range i {
			a, b := &all[i], &all[j]
			if a.yes != b.yes {
				bySource = bySource || a.to.place == b.to.place
				byDestination = byDestination || a.from.place == b.from.place
			}
		}
	}
	return bySource, byDestination
}

// dependence returns for which places the outcomes are yes and no, nil if they are the same for all. It
// names only ends whose place makes a difference.
func dependence(all []result, yes, no string) []string {
	bySource, byDestination := decisive(all)
	var where [2][]string // of no and of yes
	for _, o := range all {
		i, text := 0, ""
		if o.yes {
			i = 1
		}
		switch {
		case bySource && byDestination:
			text = o.from.Name + " is in " + o.from.place + " and " + o.to.Name + " in " + o.to.place
		case bySource:
			text = o.from.place
		default:
			text = o.to.place
		}
		if !slices.Contains(where[i], text) {
			where[i] = append(where[i], text)
		}
	}
	if len(where[0]) == 0 || len(where[1]) == 0 {
		return nil
	}
	who := ""
	switch {
	case !bySource:
		who = all[0].to.Name + " is in "
	case !byDestination:
		who = all[0].from.Name + " is in "
	}
	return []string{yes + " if " + who + either(where[1]), no + " if " + who + either(where[0])}
}

// either lists the first few alternatives.
func either(all []string) string { return words.Few(all, 4, ", or ") }

// EachPlace calls do for each pair of places where src and dst may be.
func (c *Cluster) EachPlace(src, dst *Endpoint, do func(from, to *Endpoint)) {
	for _, from := range c.everywhere(src) {
		for _, to := range c.everywhere(dst) {
			do(&from, &to)
		}
	}
}

// everywhere returns an endpoint at all places where it may be.
func (c *Cluster) everywhere(e *Endpoint) []Endpoint {
	if !e.placeholder.IsValid() {
		return []Endpoint{*e}
	}
	return c.places().at(c.endpoints[e.Name])
}

// atOnce shows an endpoint of which the same connections change at all of its places as one. gained has
// the pairs of endpoints that change.
func atOnce(endpoints []Endpoint, gained map[int]bool) ([]Endpoint, map[int]bool) {
	of := map[string][]int{} // the places of a name
	for i := range endpoints {
		if endpoints[i].places > 1 {
			of[endpoints[i].Name] = append(of[endpoints[i].Name], i)
		}
	}
	if len(of) == 0 {
		return endpoints, gained
	}
	n := len(endpoints)
	lines := make([][]int, n) // the changes of an endpoint
	for p, gains := range gained {
		from, to := p/n, p%n
		line := func(other, sends int) int {
			if endpoints[from].Name == endpoints[to].Name {
				other = n
			}
			if gains {
				sends += 2
			}
			return 4*other + sends
		}
		lines[from] = append(lines[from], line(to, 1))
		lines[to] = append(lines[to], line(from, 0))
	}
	shown, first := slices.Clone(endpoints), make([]int, n)
	for i := range first {
		first[i] = i
		slices.Sort(lines[i])
	}
	for _, all := range of {
		if len(all) == endpoints[all[0]].places && alike(lines, all, n) {
			shown[all[0]].places = 0
			for _, i := range all {
				first[i] = all[0]
			}
		}
	}
	merged := map[int]bool{}
	for p, gains := range gained {
		merged[first[p/n]*n+first[p%n]] = gains
	}
	return shown, merged
}

// alike reports whether the same changes concern all endpoints of a list, and all or none of the pairs
// that they are themselves, which are lines about endpoint self.
func alike(lines [][]int, all []int, self int) bool {
	own := map[int]int{}
	for _, line := range lines[all[0]] {
		if line/4 == self {
			own[line]++
		}
	}
	for _, n := range own {
		if n != len(all) {
			return false
		}
	}
	return !slices.ContainsFunc(all, func(i int) bool { return !slices.Equal(lines[i], lines[all[0]]) })
}
