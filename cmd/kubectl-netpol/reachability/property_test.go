package reachability

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// ofNodes are addresses of nodes. outside are those and other endpoints that are not pods:
// external addresses, and addresses in pod ranges that no pod has.
var (
	ofNodes = []string{"192.168.0.1", "192.168.0.2", "203.0.113.1", "203.0.113.2"}
	outside = []string{"203.0.113.9", "203.0.113.200", "10.1.0.99", "2001:db8::9", "fd00:2::99"}
)

// allSides returns the pods of a cluster and the endpoints outside of it.
func allSides(t *testing.T, c *Cluster) []Endpoint {
	t.Helper()
	return append(c.Pods(FirstCommon), sidesOf(t, c, slices.Concat(ofNodes, outside))...)
}

func sidesOf(t *testing.T, c *Cluster, names []string) []Endpoint {
	t.Helper()
	var sides []Endpoint
	for _, name := range names {
		s, err := c.Endpoint(name)
		if err != nil {
			t.Fatal(err)
		}
		sides = append(sides, s)
	}
	return sides
}

// agents returns the snapshot that the agent of each node compiles.
func agents(in clusterstate.Input) map[string]*policy.Snapshot {
	nodes := map[string]*policy.Snapshot{}
	for _, n := range in.Nodes {
		in.NodeName = n.Name
		nodes[n.Name] = clusterstate.Compile(in)
	}
	return nodes
}

// Each cell of a matrix agrees with the combined decision of the agents on both nodes,
// which compile their own snapshots.
func TestMatrixIsWhatTheAgentsSay(t *testing.T) {
	counts := map[bool]int{}
	forClusters(t, 300, func(t *testing.T, g gen, in clusterstate.Input) {
		c, nodes := New(in), agents(in)
		sides := allSides(t, c)
		for _, family := range []Family{FirstCommon, IPv6} {
			m := c.Matrix(sides, sides, g.connection(), family)
			for row, src := range sides {
				for column, dst := range sides {
					got, want := m.Allowed(row, column), allowedByAgents(nodes, &src, &dst, m.Port, family)
					counts[got]++
					if got != want {
						t.Errorf("%s -> %s %v: got %v, want %v\n%v", src.Name, dst.Name, m.Port, got, want, c.Explain(&src, &dst, m.Port, family))
					}
				}
			}
		}
	})
	if counts[true] < 1000 || counts[false] < 1000 {
		t.Errorf("only %v", counts)
	}
}

// allowedByAgents asks every agent. An agent of another node accepts the packet, because
// the pods are not its own. Agents are not asked about what a node sends to its own pods
// and what a pod sends to itself.
func allowedByAgents(nodes map[string]*policy.Snapshot, src, dst *Endpoint, port Port, family Family) bool {
	from, to, ok := addresses(src, dst, family)
	number, declared := port.numberOn(dst)
	if !ok || !declared {
		return false
	}
	if (src.Kind == HostNetworkPod || src.Kind == Node) && src.Node == dst.Node {
		return true
	}
	for name, s := range nodes {
		if e := s.Endpoint(from); e != nil && e == s.Endpoint(to) {
			return true
		}
		toHost := (dst.Kind == HostNetworkPod || dst.Kind == Node) && dst.Node == name && src.Node == name
		if !s.Evaluate(policy.Query{Packet: port.packet(from, to, number), ToHost: toHost}).Allowed() {
			return false
		}
	}
	return true
}

// Explain agrees with Evaluate, and each step of the explanation follows from the previous
// one.
func TestExplanationLeadsToTheDecision(t *testing.T) {
	forClusters(t, 300, func(t *testing.T, g gen, in clusterstate.Input) {
		c := New(in)
		sides := allSides(t, c)
		for _, src := range sides {
			for _, dst := range sides {
				port := g.connection()
				a, e := c.Evaluate(&src, &dst, port, FirstCommon), c.Explain(&src, &dst, port, FirstCommon)
				if e.Allowed != a.Allowed {
					t.Errorf("%s -> %s: explained %v, evaluated %v", src.Name, dst.Name, e.Allowed, a.Allowed)
				}
				if a.Cause != ByPolicy {
					continue
				}
				if d := c.snapshot.Explain(a.Query).Decision; d != a.Decision {
					t.Errorf("%v: explained %v", a.Query, d)
				}
				if a.Query.ToHost != (len(e.Directions) == 1) {
					t.Errorf("%s -> %s: %d directions", src.Name, dst.Name, len(e.Directions))
				}
				allowed := true
				for _, d := range e.Directions {
					allowed = allowed && d.Allowed
					checkTrace(t, &d, a.Query.ToHost)
				}
				if e.Allowed != allowed {
					t.Errorf("%s -> %s: %v, but the directions say %+v", src.Name, dst.Name, e.Allowed, e.Directions)
				}
			}
		}
	})
}

// checkTrace checks that a direction's verdict follows from its rules, tier by tier, and
// that every item that does not match has a reason.
func checkTrace(t *testing.T, c *Trace, ownNode bool) {
	t.Helper()
	verdict := ""
	for _, tier := range c.Tiers {
		if tier.NotEvaluated != (verdict != "") || tier.NotEvaluated && len(tier.Rules) > 0 {
			t.Errorf("after %q: tier %+v", verdict, tier)
		}
		if tier.NotEvaluated {
			continue
		}
		passed := false
		for _, r := range tier.Rules {
			checkRule(t, &r)
			switch {
			case verdict != "" || r.Skipped != passed:
				t.Errorf("rule %+v of %+v", r, tier)
			case !r.Matches || passed:
			case r.Action == "pass":
				passed = true
			default:
				verdict = r.Action
			}
		}
		if tier.Name == "networkpolicy" && verdict == "" {
			verdict = "deny"
			if ownNode {
				verdict = "allow"
			}
		}
		if strings.HasSuffix(tier.Outcome, ", which is final") != (verdict != "") || !strings.Contains(tier.Outcome, verdict) {
			t.Errorf("%q, and the tier ends: %s", verdict, tier.Outcome)
		}
	}

	unknown := strings.Contains(c.Reason, "is not known yet")
	if c.Allowed != (verdict != "deny") && !unknown || c.Allowed && unknown {
		t.Errorf("%q by the rules of %+v", verdict, c)
	}
	if len(c.Policies) == 0 && len(c.Tiers) > 0 {
		t.Errorf("rules without a policy: %+v", c)
	}
}

func checkRule(t *testing.T, r *Rule) {
	t.Helper()
	ok := func(i Item) bool { return i.Matches }
	if want := slices.ContainsFunc(r.Peers, ok) && slices.ContainsFunc(r.Ports, ok); r.Matches != want {
		t.Errorf("rule %+v", r)
	}
	for _, i := range slices.Concat(r.Peers, r.Ports) {
		if i.Means == "" || i.Matches != (i.Why == "") {
			t.Errorf("item %+v", i)
		}
	}
}

// The groups of its row and column determine every cell.
func TestGroupsHaveOneCell(t *testing.T) {
	merged := 0
	forClusters(t, 300, func(t *testing.T, g gen, in clusterstate.Input) {
		c := New(in)
		sides := allSides(t, c)
		m := c.Matrix(sides[g.IntN(3):], sides[:len(sides)-g.IntN(3)], g.connection(), FirstCommon)
		groups := m.Groups()
		merged += len(sides) - len(groups)
		groupOf := map[string]int{}
		for i, group := range groups {
			for _, s := range group.Members {
				groupOf[s.Name] = i
			}
		}
		for row, from := range m.From {
			for column, to := range m.To {
				a, b := groups[groupOf[from.Name]], groups[groupOf[to.Name]]
				if from.Name != to.Name && m.Allowed(row, column) != m.AllowedBetween(a, b) {
					t.Errorf("%s -> %s is %v, unlike its groups", from.Name, to.Name, m.Allowed(row, column))
				}
			}
		}
	})
	if merged == 0 {
		t.Error("no group has two members")
	}
}

// everyPair evaluates each pair on its own.
func everyPair(c *Cluster, sides []Endpoint, port Port) []bool {
	var allowed []bool
	for i := range sides {
		for j := range sides {
			allowed = append(allowed, c.Evaluate(&sides[i], &sides[j], port, FirstCommon).Allowed)
		}
	}
	return allowed
}

// One port of a range represents all of it.
func TestSpansStandForAllTheirPorts(t *testing.T) {
	forClusters(t, 600, func(t *testing.T, g gen, in clusterstate.Input) {
		c := New(in)
		sides := allSides(t, c)
		for _, s := range PortRanges(c) {
			samples := []Port{{Proto: s.Proto, Number: s.Last}}
			if s.Proto.HasPorts() {
				samples = append(samples, Port{Proto: s.Proto, Number: s.First + uint16(g.IntN(int(s.Last-s.First)+1))})
			} else {
				samples = append(samples, Port{Proto: 47})
			}
			for _, p := range samples {
				if !slices.Equal(everyPair(c, sides, s.Port()), everyPair(c, sides, p)) {
					t.Errorf("%v: port %v is decided differently", s, p)
				}
			}
		}
	})
}

// Every external address is evaluated like one of the representatives.
func TestExternalAddressesStandForAll(t *testing.T) {
	forClusters(t, 600, func(t *testing.T, g gen, in clusterstate.Input) {
		c := New(in)
		pods, port := c.Pods(FirstCommon), g.connection()
		lines := map[string]bool{}
		line := func(name string) string {
			s, err := c.Endpoint(name)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(s.v4.IsValid(), c.Matrix([]Endpoint{s}, pods, port, FirstCommon).allowed, c.Matrix(pods, []Endpoint{s}, port, FirstCommon).allowed)
		}
		for _, name := range ExternalAddresses(Translated{}, c) {
			lines[line(name)] = true
		}
		for range 20 {
			addr := netip.AddrFrom4([4]byte{random.Pick[byte](g, 10, 10, 192, 203, 255, 0), random.Pick[byte](g, 0, 1, 168), random.Pick[byte](g, 0, 0, 113), byte(g.IntN(256))})
			if g.OneIn(3) {
				addr = netip.MustParseAddr(fmt.Sprintf("%s::%x", random.Pick(g, "fd00:1", "2001:db8", "fd00:3", "ff"), g.IntN(300)))
			}
			if isExternal(addr, Translated{}, clusterRanges(Translated{}, []*Cluster{c}), []*Cluster{c}) && hasFamily(addr, []*Cluster{c}) && !lines[line(addr.String())] {
				t.Errorf("%v is like none of %v", addr, ExternalAddresses(Translated{}, c))
			}
		}
	})
}

// Compare reports all differences between two matrices, and no others, for pods and nodes.
func TestCompareTellsEveryChange(t *testing.T) {
	changes := map[bool]int{} // by whether a node is involved
	forClusters(t, 1000, func(t *testing.T, g gen, in clusterstate.Input) {
		before, after := New(in), New(g.changed(in))
		addresses := append(NodeAddresses(before, after), ExternalAddresses(Translated{}, before, after)...)
		d, err := Compare(Names{}, before, after, PortRanges(before, after), addresses, FirstCommon)
		if err != nil {
			t.Fatal(err)
		}
		reported := map[string]bool{}
		for _, c := range d.Changes {
			for _, span := range c.Traffic {
				for _, cell := range c.Cells() {
					reported[fmt.Sprint(span, cell.From, cell.To, cell.Allowed)] = true
				}
			}
		}
		sides := append(before.Pods(FirstCommon), sidesOf(t, before, ofNodes)...)
		for _, span := range d.Checked {
			port := Port{Proto: span.Proto, Number: span.Last}
			matrixBefore, matrixAfter := before.Matrix(sides, sides, port, FirstCommon), after.Matrix(sides, sides, port, FirstCommon)
			for i := range matrixBefore.allowed {
				from, to := sides[i/len(sides)], sides[i%len(sides)]
				listedFrom, listedTo := standIn(from, sides), standIn(to, sides)
				cell := fmt.Sprint(span, listedFrom.Name, listedTo.Name, matrixAfter.allowed[i])
				differs := matrixBefore.allowed[i] != matrixAfter.allowed[i]
				if differs {
					changes[from.Kind == Node || to.Kind == Node]++
				}
				// A representative may have one family more than the address.
				same := listedFrom.Name == from.Name && listedTo.Name == to.Name
				if reported := reported[cell]; differs && !reported || reported && !differs && same {
					t.Errorf("%s: differs is %v", cell, differs)
				}
			}
		}
	})
	if changes[false] < 1000 || changes[true] < 1000 {
		t.Errorf("only %v changes", changes)
	}
}

func TestCompareSeparatesNodesFromExternalAddresses(t *testing.T) {
	full, empty := cluster(), New(clusterstate.Input{})
	for _, clusters := range [][2]*Cluster{{full, empty}, {empty, full}} {
		d, err := Compare(Names{}, clusters[0], clusters[1], nil, []string{"192.168.0.1", "203.0.113.9"}, FirstCommon)
		if err != nil || !slices.Equal(d.Nodes, []string{"192.168.0.1"}) || !slices.Equal(d.External, []string{"203.0.113.9"}) {
			t.Errorf("got nodes %v, external %v, %v", d.Nodes, d.External, err)
		}
	}
}

// changed returns the cluster with one more policy of any kind.
func (g gen) changed(in clusterstate.Input) clusterstate.Input {
	switch g.IntN(4) {
	case 0:
		in.Policies = append(slices.Clone(in.Policies), g.NetworkPolicy("x", "new"))
	case 1:
		in.Policies = append(slices.Clone(in.Policies), g.AdminNetworkPolicy("new"))
	case 2:
		in.Policies = append(slices.Clone(in.Policies), g.ClusterNetworkPolicy("new"))
	default:
		in.Policies = append(slices.DeleteFunc(slices.Clone(in.Policies), isBaseline), g.baseline())
	}
	return in
}

func isBaseline(o compile.Object) bool { return compile.KindBaselineAdminNetworkPolicy.Has(o) }

// standIn returns the host-network pod that represents the address of a node, or s if there
// is none.
func standIn(s Endpoint, sides []Endpoint) Endpoint {
	i := slices.IndexFunc(sides, func(pod Endpoint) bool { return pod.Kind == HostNetworkPod && pod.first() == s.first() })
	if s.Kind == Node && i >= 0 {
		return sides[i]
	}
	return s
}

func TestJoinMakesOneOfWhatFollows(t *testing.T) {
	spans := []PortRange{{Proto: 6, First: 1, Last: 79}, {Proto: 6, First: 80, Last: 80}, {Proto: 6, First: 82, Last: 65535}, {Proto: 17, First: 1, Last: 65535}, {Proto: 1}}
	var got []string
	for _, s := range JoinPortRanges(spans) {
		got = append(got, s.String())
	}
	if want := "TCP 1-80; TCP 82-65535; UDP, every port; ICMP and every other protocol"; strings.Join(got, "; ") != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
