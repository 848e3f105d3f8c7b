package clusterstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// aNode is a node with a pod range of each family and an address, all with that number.
func aNode(n int, addrs ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", n), Labels: map[string]string{"node": fmt.Sprint(n)}}}
	node.Spec.PodCIDRs = []string{fmt.Sprintf("10.1.%d.0/24", n), fmt.Sprintf("fd00:1:%d::/64", n)}
	for _, a := range append([]string{fmt.Sprintf("192.168.0.%d", n)}, addrs...) {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return node
}

// withRange returns a node with a different range, bare one without ranges.
func withRange(n int, ranges ...string) *corev1.Node {
	node := aNode(n)
	node.Spec.PodCIDRs = ranges
	return node
}

func bare(n int) *corev1.Node { return withRange(n) }

// at is a pod on a node, "n1" for example, with these addresses.
func at(node, name string, addrs ...string) *corev1.Pod {
	p := newcomer(name, addrs...)
	p.Spec.NodeName = node
	return p
}

// TestStatusesClaimNothingElsewhere: NP-62 to NP-64, as node n1 sees it. Node n2 is compromised:
// its pods and its Node claim arbitrary addresses. The pod "away" is younger than all others.
func TestStatusesClaimNothingElsewhere(t *testing.T) {
	honest := []any{at("n1", "one", "10.1.1.1", "fd00:1:1::1"), at("n2", "two", "10.1.2.1", "fd00:1:2::1"), at("n3", "three", "10.1.3.1", "fd00:1:3::1")}
	ranges := []any{aNode(1), aNode(2), aNode(3)}
	ignored := []any{at("n1", "one", "10.9.0.1"), at("n2", "two", "10.9.0.65"), at("n3", "three", "10.9.0.129"), at("n3", "more", "10.1.1.65")}
	onHost := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.HostNetwork = true
		return p
	}
	none := []any{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}
	terminating := func(p *corev1.Pod) *corev1.Pod {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		return p
	}
	away := func(addrs ...string) *corev1.Pod {
		p := at("n2", "away", addrs...)
		p.CreationTimestamp = metav1.Unix(1000, 0)
		return p
	}
	for _, tc := range []struct {
		name    string
		nodes   []any
		pods    []any
		addr    string
		owner   string // of addr
		isNode  bool   // nodes as peers include addr
		kind    ConflictKind
		details string // of the conflict
	}{
		{"in its own range", ranges, append(honest, away("10.1.2.2")), "10.1.2.2", "x/away", false, "", ""},
		{"of a pod elsewhere", ranges, append(honest, away("10.1.3.1")), "10.1.3.1", "x/three", false, PodRange, "x/three n3 x/away n2"},
		{"of a pod elsewhere, IPv6", ranges, append(honest, away("fd00:1:3::1")), "fd00:1:3::1", "x/three", false, PodRange, "x/three n3 x/away n2"},
		{"of no known pod elsewhere", ranges, append(honest, away("10.1.3.2")), "10.1.3.2", "x/away", false, "", ""},
		{"mapped to IPv6", ranges, append(honest, away("::ffff:10.1.3.1")), "10.1.3.1", "x/three", false, PodRange, "x/three n3 x/away n2"},
		{"among its own", ranges, append(honest, away("10.1.2.2", "fd00:1:3::2", "10.1.3.2")), "10.1.3.2", "x/away", false, "", ""},
		{"among its own, which it keeps", ranges, append(honest, away("10.1.3.2", "10.1.2.2")), "10.1.2.2", "x/away", false, "", ""},
		{"of a pod here", ranges, append(honest, away("10.1.1.1")), "10.1.1.1", "x/one", false, LocalPod, "x/one n1 x/away n2"},
		{"of a new pod here", ranges, append(honest, away("10.1.1.2")), "10.1.1.2", "here, x/away", false, OwnRange, " n1 x/away n2"},
		{"of a node", ranges, append(honest, away("192.168.0.3")), "192.168.0.3", "none, x/away", false, NodeAddress, " n3 x/away n2"},
		{"of the own node", ranges, append(honest, away("192.168.0.1")), "192.168.0.1", "none, x/away", false, NodeAddress, " n1 x/away n2"},
		{"of its node", ranges, append(honest, away("192.168.0.2")), "192.168.0.2", "x/away", true, "", ""},
		{"of a node that its node claims too", []any{aNode(1), aNode(2, "192.168.0.3"), aNode(3)}, append(honest, away("192.168.0.3")), "192.168.0.3", "none, x/away", false, NodeAddress, " n3 x/away n2"},
		{"outside of all ranges", ranges, append(honest, away("203.0.113.1")), "203.0.113.1", "x/away", false, "", ""},
		{"outside of all ranges, IPv6", ranges, append(honest, away("2001:db8::1")), "2001:db8::1", "x/away", false, "", ""},
		{"outside of all ranges, a pod here", ranges, append(honest, at("n1", "away", "203.0.113.1")), "203.0.113.1", "x/away", false, "", ""},
		{"outside of all ranges, the node's other pods too", ranges, append(honest, away("203.0.113.1"), at("n2", "a2", "203.0.113.2"), at("n2", "a3", "203.0.113.3")), "203.0.113.1", "x/away", false, "", ""},
		{"outside of all ranges, another node's pods too", ranges, append(honest[:2:2], at("n3", "three", "203.0.113.3"), away("203.0.113.1"), at("n2", "a2", "203.0.113.2")), "203.0.113.1", "x/away", false, "", ""},
		{"outside of all ranges, no pod elsewhere", ranges, []any{away("203.0.113.1")}, "203.0.113.1", "x/away", false, "", ""},
		{"outside of all ranges, of a node without ranges", []any{aNode(1), bare(2), aNode(3)}, append(honest, away("203.0.113.1")), "203.0.113.1", "x/away", false, "", ""},
		{"outside of all ranges, of a node without a range of the family", []any{aNode(1), withRange(2, "10.1.2.0/24"), aNode(3)}, append(honest, away("2001:db8::1")), "2001:db8::1", "x/away", false, "", ""},
		{"outside of all ranges, of a node that is not known", ranges, append(honest, at("n9", "away", "203.0.113.1")), "203.0.113.1", "x/away", false, "", ""},
		{"loopback", ranges, append(honest, away("127.0.0.1")), "127.0.0.1", "", false, "", ""},
		{"loopback mapped to IPv6", ranges, append(honest, away("::ffff:127.0.0.1")), "127.0.0.1", "", false, "", ""},
		{"link-local", ranges, append(honest, away("169.254.169.254")), "169.254.169.254", "", false, "", ""},
		{"link-local, IPv6", ranges, append(honest, away("fe80::1")), "fe80::1", "", false, "", ""},
		{"multicast", ranges, append(honest, away("224.0.0.251")), "224.0.0.251", "", false, "", ""},
		{"broadcast", ranges, append(honest, away("255.255.255.255")), "255.255.255.255", "", false, "", ""},
		{"unspecified", ranges, append(honest, away("0.0.0.0")), "0.0.0.0", "", false, "", ""},
		{"a pod of the node's network", ranges, append(honest, onHost(away("10.1.3.2"))), "10.1.3.2", "", false, "", ""},
		{"a pod that no node runs", ranges, append(honest, at("", "away", "203.0.113.1")), "203.0.113.1", "", false, "", ""},
		{"a pod of a node that is not known", ranges, append(honest, at("n9", "away", "10.1.3.2")), "10.1.3.2", "x/away", false, "", ""},
		{"several pods of one node claim addresses of another", ranges, append(honest, away("10.1.3.2"), at("n2", "a2", "10.1.3.3"), at("n2", "a3", "10.1.3.4")), "10.1.3.2", "x/away", false, "", ""},

		{"a plugin without the ranges: inside of another", ranges, append(ignored, away("10.1.3.2")), "10.1.3.2", "x/away", false, OwnRange, " n1 x/more n3"},
		{"a plugin without the ranges: inside of the own one", ranges, ignored, "10.1.1.65", "here, x/more", false, OwnRange, " n1 x/more n3"},
		{"a plugin without the ranges: of a node", ranges, append(ignored, away("192.168.0.3")), "192.168.0.3", "none, x/away", false, NodeAddress, " n3 x/away n2"},
		{"a plugin without the ranges: of a pod elsewhere", ranges, append(ignored, away("10.9.0.129")), "10.9.0.129", "x/away, x/three", false, OtherPod, "x/away n2 x/three n3"},
		{"no ranges are known: of a pod elsewhere", none, append(honest, away("10.1.3.1")), "10.1.3.1", "x/away, x/three", false, OtherPod, "x/away n2 x/three n3"},
		{"no ranges are known: of a pod elsewhere that terminates", none, append(honest[:2:2], terminating(at("n3", "three", "10.1.3.1")), away("10.1.3.1")), "10.1.3.1", "x/away, x/three", false, "", ""},
		{"no ranges are known: two pods of one node", none, append(honest, at("n3", "away", "10.1.3.1")), "10.1.3.1", "x/away", false, "", ""},
		{"one node is by chance in its range", ranges, append(ignored[1:], at("n1", "one", "10.1.1.1")), "10.1.1.65", "here, x/more", false, OwnRange, " n1 x/more n3"},
		{"one node does not use its range", ranges, append(honest[:2:2], at("n3", "three", "10.9.0.1"), away("10.1.3.2")), "10.1.3.2", "x/away", false, "", ""},
		{"only IPv6 is in the ranges: IPv4", ranges, append(ignored, away("10.1.3.2"), at("n1", "v6", "fd00:1:1::2"), at("n3", "v6far", "fd00:1:3::2")), "10.1.3.2", "x/away", false, OwnRange, " n1 x/more n3"},
		{"only IPv6 is in the ranges: IPv6", ranges, append(ignored, away("fd00:1:3::3"), at("n1", "v6", "fd00:1:1::2"), at("n3", "v6far", "fd00:1:3::2")), "fd00:1:3::3", "x/away", false, OwnRange, " n1 x/more n3"},
		{"no ranges are known", none, append(honest, away("10.1.3.2")), "10.1.3.2", "x/away", false, "", ""},
		{"two nodes with one range", []any{aNode(1), aNode(2), func() any { n := aNode(3); n.Spec.PodCIDRs = aNode(2).Spec.PodCIDRs; return n }()}, append(honest[:2:2], at("n3", "away", "10.1.2.2")), "10.1.2.2", "x/away", false, "", ""},

		{"a node writes a range where others have none", []any{bare(1), withRange(2, "10.0.0.0/8"), bare(3)}, append(honest, away("10.1.3.1")), "10.1.3.1", "x/away, x/three", false, OtherPod, "x/away n2 x/three n3"},
		{"a node writes a range where others have none, and claims no address", []any{bare(1), withRange(2, "10.0.0.0/8"), bare(3)}, honest, "10.1.3.1", "x/three", false, "", ""},
		{"a node writes the range of the own node", []any{aNode(1), withRange(2, "10.1.1.0/24"), aNode(3)}, append(honest, away("10.1.1.2")), "10.1.1.2", "here, x/away", false, OwnRange, " n1 x/away n2"},
		{"a node writes a wider range than that of the own node", []any{aNode(1), withRange(2, "10.0.0.0/8"), aNode(3)}, append(honest, away("10.1.1.2")), "10.1.1.2", "here, x/away", false, OwnRange, " n1 x/away n2"},
		{"a node writes a wider range than that of another", []any{aNode(1), withRange(2, "10.0.0.0/8"), aNode(3)}, append(honest, away("10.1.3.1")), "10.1.3.1", "x/away, x/three", false, OtherPod, "x/away n2 x/three n3"},
		{"a node writes a range, and the address of a pod here", []any{aNode(1), func() any { n := aNode(2, "10.1.1.9"); n.Spec.PodCIDRs = []string{"10.0.0.0/8"}; return n }(), aNode(3)}, append(honest, at("n1", "other", "10.1.1.9")), "10.1.1.9", "x/other", false, NodeStatus, "x/other n1  n2"},

		{"a Node with the address of a pod here", []any{aNode(1), aNode(2, "10.1.1.9"), aNode(3)}, append(honest, at("n1", "other", "10.1.1.9")), "10.1.1.9", "x/other", false, NodeStatus, "x/other n1  n2"},
		{"a Node with an address of the own range", []any{aNode(1), aNode(2, "10.1.1.2"), aNode(3)}, honest, "10.1.1.2", "here, no node, none", false, NodeStatus, " n1  n2"},
		{"a Node with an address of another range", []any{aNode(1), aNode(2, "10.1.3.2"), aNode(3)}, honest, "10.1.3.2", "no node, none", false, NodeStatus, " n3  n2"},
		{"a Node with the address of a pod elsewhere, IPv6", []any{aNode(1), aNode(2, "fd00:1:3::1"), aNode(3)}, honest, "fd00:1:3::1", "x/three", false, NodeStatus, " n3  n2"},
		{"a Node with an address of its own range", []any{aNode(1), aNode(2, "10.1.2.254"), aNode(3)}, honest, "10.1.2.254", "", true, "", ""},
		{"a Node with the address of a pod here, outside of the ranges", []any{aNode(1), aNode(2, "10.9.0.2"), aNode(3)}, append(ignored, at("n1", "other", "10.9.0.2")), "10.9.0.2", "x/other", false, NodeStatus, "x/other n1  n2"},
		{"a Node with a link-local address", []any{aNode(1), aNode(2, "169.254.169.254"), aNode(3)}, honest, "169.254.169.254", "", false, "", ""},
		{"a Node with an address outside of the cluster", []any{aNode(1), aNode(2, "203.0.113.1"), aNode(3)}, honest, "203.0.113.1", "", true, "", ""},
	} {
		objects := slices.Concat(tc.nodes, tc.pods)
		for order := range 3 {
			t.Run(tc.name, func(t *testing.T) {
				c := New(Config{NodeName: "n1", Features: compile.AllFeatures()})
				toNodes := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nodes"}}
				mustRead(`{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{nodes: {}}]}]}`, &toNodes.Spec)
				closed := netpol("x", "closed", `{podSelector: {matchLabels: {pod: one}}, policyTypes: [Egress]}`)
				for _, o := range []any{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, toNodes, closed} {
					c.Set(o)
				}
				for i := range objects {
					switch order {
					case 1:
						i = len(objects) - 1 - i
					case 2: // in snapshots of their own
						c.Snapshot()
					}
					if p, ok := objects[i].(*corev1.Pod); ok {
						c.Set(compile.NewPod(p))
					} else {
						c.Set(objects[i])
					}
				}
				s, addr := c.Snapshot(), netip.MustParseAddr(tc.addr)
				if got := occupants(c, addr); got != tc.owner {
					t.Errorf("the address belongs to %q, want %q", got, tc.owner)
				}
				one := netip.MustParseAddr("10.1.1.1")
				switch {
				case addr.Is6():
					one = netip.MustParseAddr("fd00:1:1::1")
				case s.Endpoint(one) == nil:
					one = netip.MustParseAddr("10.9.0.1")
				}
				p := packet.Packet{Proto: packet.TCP, Src: netip.AddrPortFrom(one, 1), Dst: netip.AddrPortFrom(addr, 80)}
				if d := s.Evaluate(policy.Query{Packet: p}); addr != one && s.Endpoint(one) != nil && d.Allowed() != tc.isNode {
					t.Errorf("%v: %v, want it allowed as a node: %v", p, d, tc.isNode)
				}
				kinds := []string{}
				for _, f := range c.Conflicts() {
					if f.Addr == addr || tc.owner == "x/away" {
						kinds = append(kinds, fmt.Sprintf("%s: %s %s %s %s", f.Kind, f.Pod, f.Node, f.Other, f.OtherNode))
					}
				}
				want := []string{}
				if tc.kind != "" {
					want = []string{fmt.Sprintf("%s: %s", tc.kind, tc.details)}
				}
				if !slices.Equal(kinds, want) {
					t.Errorf("conflicts %q, want %q", kinds, want)
				}
				c.deleteAll(t)
			})
		}
	}
}

// occupants returns who may have addr: pods, "here" for a new pod of this node, "none" for no pod and
// "no node" if it may be no node's.
func occupants(c *Cluster, addr netip.Addr) string {
	e := c.addresses.at(addr)
	switch {
	case e == nil:
		return ""
	case e.Dispute == nil:
		return e.String()
	}
	var all []string
	for _, p := range e.Dispute.Pods {
		all = append(all, p.String())
	}
	for what, may := range map[string]bool{"here": e.Dispute.Here, "none": e.Dispute.NoPod, "no node": e.Dispute.NoHost} {
		if may {
			all = append(all, what)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// deleteAll deletes pods and nodes, and checks that nothing is left of them.
func (c *Cluster) deleteAll(t *testing.T) {
	t.Helper()
	for _, kind := range []*compile.Kind{compile.KindNode, compile.KindPod} {
		var names [][2]string
		for ns, name := range c.Names(kind) {
			names = append(names, [2]string{ns, name})
		}
		for _, n := range names {
			c.Delete(kind, n[0], n[1])
		}
	}
	c.Snapshot()
	h := &c.addresses.homes
	if n := len(c.addresses.contested) + len(c.addresses.unknown) + len(h.ranges) + len(h.inRange) + len(h.hosts) + len(c.Conflicts()); n > 0 {
		t.Errorf("left: %+v", c.addresses)
	}
}

// TestStatusesClaimNothingForTools: NP-62. With AllNodes, only the API says which pod has an
// address.
func TestStatusesClaimNothingForTools(t *testing.T) {
	c := New(Config{AllNodes: true, Features: compile.AllFeatures()})
	for _, o := range []any{aNode(2), aNode(3), compile.NewPod(at("n3", "three", "10.1.3.1")), compile.NewPod(at("n2", "away", "10.1.3.2")), compile.NewPod(at("", "nowhere", "10.1.3.3"))} {
		c.Set(o)
	}
	s := c.Snapshot()
	for addr, want := range map[string]string{"10.1.3.2": "x/away", "10.1.3.3": "x/nowhere"} {
		if e := s.Endpoint(netip.MustParseAddr(addr)); e == nil || e.String() != want {
			t.Errorf("%s belongs to %v, want %s", addr, e, want)
		}
	}
}

// Pods of other nodes are uncertain while one of their addresses may be another's, whoever else claims it, but
// not if only a route of this node decides, as with plugins that do not use the ranges of nodes.
func TestUncertainPods(t *testing.T) {
	terminating := at("n2", "two", "203.0.113.1")
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		pods []any
		want string
	}{
		"in their ranges":                     {[]any{at("n2", "two", "10.1.2.1"), at("n3", "three", "10.1.3.1")}, ""},
		"outside of all ranges":               {[]any{at("n2", "two", "203.0.113.1"), at("n3", "three", "203.0.113.2")}, ""},
		"equal claims":                        {[]any{at("n2", "two", "10.1.2.1", "203.0.113.1"), at("n3", "three", "203.0.113.1")}, "x/three x/two"},
		"equal claims, IPv6":                  {[]any{at("n2", "two", "2001:db8::1"), at("n3", "three", "2001:db8::1")}, "x/three x/two"},
		"a pod at home has it":                {[]any{at("n2", "two", "10.1.3.1"), at("n3", "three", "10.1.3.1")}, "x/two"},
		"a pod here has it":                   {[]any{at("n2", "two", "10.1.1.1"), at("n1", "one", "10.1.1.1")}, "x/two"},
		"a Node has it":                       {[]any{at("n2", "two", "192.168.0.3")}, "x/two"},
		"in the range of this node":           {[]any{at("n2", "two", "10.1.1.9")}, ""},
		"in the range of this node, two":      {[]any{at("n2", "two", "10.1.1.9"), at("n3", "three", "10.1.1.9")}, "x/three x/two"},
		"of a pod that is handed on":          {[]any{terminating, at("n3", "three", "203.0.113.1")}, "x/three"},
		"two pods of one node, the older one": {[]any{at("n2", "two", "203.0.113.1"), at("n2", "zwei", "203.0.113.1")}, "x/zwei"},
	} {
		c := New(Config{NodeName: "n1", Features: compile.AllFeatures()})
		for _, o := range []any{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, aNode(1), aNode(2), aNode(3)} {
			c.Set(o)
		}
		for _, p := range tc.pods {
			c.Set(compile.NewPod(p.(*corev1.Pod)))
		}
		c.Snapshot()
		var got []string
		for _, p := range c.Uncertain() {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, want %q", name, got, tc.want)
		}
	}
}
