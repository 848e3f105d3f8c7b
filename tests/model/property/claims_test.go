package property

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// claimNodes is the number of nodes in a cluster of pools: node here, and others.
const claimNodes = 4

func claimNode(n int) string {
	if n == 0 {
		return here
	}
	return fmt.Sprintf("node%d", n)
}

// poolsOf is how the pods of a cluster get addresses.
type poolsOf struct {
	name string
	// ranges returns the pod ranges of node n.
	ranges func(n int) []string
	// pool returns the third byte of an address of pod i of node n: that of a node's range, or of
	// something else.
	pool func(g *gen, n, i int) int
}

func rangesOfNode(n int) []string {
	return []string{fmt.Sprintf("10.1.%d.0/24", n), fmt.Sprintf("fd00:1:%d::/64", n)}
}

func noRanges(int) []string { return nil }

func ownRange(_ *gen, n, _ int) int { return n }

// pools are the plugins and plans of addresses that clusters have.
var pools = []poolsOf{
	{"ranges used by all", rangesOfNode, ownRange},
	{"no ranges", noRanges, func(g *gen, _, _ int) int { return g.IntN(claimNodes) }},
	{"ranges used by none, blocks in other nodes' ranges", rangesOfNode, func(_ *gen, n, i int) int { return (n + 1 + i%2) % claimNodes }},
	{"ranges used by none, blocks outside", rangesOfNode, func(*gen, int, int) int { return 9 }},
	{"ranges used by some", rangesOfNode, func(_ *gen, n, _ int) int { return []int{n, 9}[n%2] }},
	{"two pools on each node", rangesOfNode, func(_ *gen, n, i int) int { return []int{n, 9}[i%2] }},
	{"two pools on one node", rangesOfNode, func(_ *gen, n, i int) int { return []int{n, 9}[i*n%2] }},
	{"some nodes without ranges", func(n int) []string { return [][]string{rangesOfNode(n), nil}[n%2] }, func(_ *gen, n, i int) int { return []int{n, 9}[(n+i)%2] }},
	{"one family each way", func(n int) []string { return rangesOfNode(n)[n%2 : n%2+1] }, func(_ *gen, n, i int) int { return []int{n, 9}[i%2] }},
	{"overlapping ranges", func(n int) []string { return [][]string{rangesOfNode(n), {"10.1.0.0/16"}}[n/3] }, ownRange},
}

// claimAddresses returns the addresses with this third byte and number.
func claimAddresses(pool, n int) []string {
	return []string{fmt.Sprintf("10.1.%d.%d", pool, n), fmt.Sprintf("fd00:1:%d::%d", pool, n)}
}

// nodeAddress is the address of node n.
func nodeAddress(n int) string { return fmt.Sprintf("192.168.0.%d", n+1) }

// claims returns a cluster with these pools: three pods on each node, each with its own addresses.
func (g *gen) claims(how poolsOf) oracle.Cluster {
	c := g.cluster()
	c.Nodes, c.Pods = nil, nil
	for n := range claimNodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claimNode(n), Labels: g.Labels()}}
		node.Spec.PodCIDRs = how.ranges(n)
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(n)}}
		c.Nodes = append(c.Nodes, node)
		for i := range 3 {
			c.Pods = append(c.Pods, g.claimant(n, i, claimAddresses(how.pool(g, n, i), 10*n+i+1)))
		}
	}
	return c
}

// claimant is pod i of node n, running with these addresses or one of them.
func (g *gen) claimant(n, i int, addrs []string) *corev1.Pod {
	pod := g.pod(random.Pick(g, namespaceNames...), fmt.Sprintf("p%d-%d", n, i), fmt.Sprintf("u%d-%d", n, i))
	pod.Spec.NodeName, pod.Spec.HostNetwork, pod.DeletionTimestamp = claimNode(n), false, nil
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	for _, a := range random.Pick(g, addrs, addrs, addrs[:1], addrs[1:]) {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return pod
}

// lie lets the kubelet of one of the other nodes write whatever it may: claims of its pods and its
// Node to addresses of pods, nodes and others, and a range if its Node has none.
func (g *gen) lie(c *oracle.Cluster) (liar int) {
	liar = 1 + g.IntN(claimNodes-1)
	for i := range 3 {
		pod := g.claimant(liar, 100+i, g.anyAddresses())
		if g.OneIn(4) {
			pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0).UTC()}
		}
		c.Pods = append(c.Pods, pod)
	}
	node := c.Nodes[liar].DeepCopy()
	c.Nodes[liar] = node
	if g.OneIn(2) {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: random.Pick(g, g.anyAddresses()...)})
	}
	if len(node.Spec.PodCIDRs) == 0 && g.OneIn(2) {
		node.Spec.PodCIDRs = []string{"10.0.0.0/8", "fd00::/16"}
	}
	return liar
}

// anyAddresses are addresses of some pod, of no pod, or of a node.
func (g *gen) anyAddresses() []string {
	if g.OneIn(6) {
		return []string{nodeAddress(g.IntN(claimNodes)), "2001:db8::9"}
	}
	n := g.IntN(claimNodes)
	return claimAddresses(random.Pick(g, n, n, n, 9, g.IntN(claimNodes)), 10*n+g.IntN(4)+1)
}

// claimQuestions are about packets between pods of node here and every address that is claimed.
func (g *gen) claimQuestions(c oracle.Cluster) (questions []question) {
	var local, all []netip.Addr
	for _, pod := range c.Pods {
		for _, a := range compile.NewPod(pod).Addrs {
			all = append(all, a)
			if pod.Spec.NodeName == here {
				local = append(local, a)
			}
		}
	}
	for _, n := range c.Nodes {
		all = append(all, compile.NewNode(n).Addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	for _, a := range local {
		for _, o := range slices.Compact(all) {
			if a != o && a.Is4() == o.Is4() {
				questions = append(questions, question{Packet: g.packet(a, o)}, question{Packet: g.packet(o, a)})
			}
		}
	}
	return questions
}

// forClaims passes clusters of all pools to a property, before and after a kubelet lies.
func forClaims(t *testing.T, property func(t *testing.T, g *gen, honest, lying oracle.Cluster, liar int, about string)) {
	for _, how := range pools {
		t.Run(how.name, func(t *testing.T) {
			for seed := range uint64(12) {
				g := newGen(1000 + seed)
				honest := g.claims(how)
				lying := honest
				lying.Pods, lying.Nodes = slices.Clone(honest.Pods), slices.Clone(honest.Nodes)
				liar := g.lie(&lying)
				property(t, g, honest, lying, liar, fmt.Sprintf("seed %d", seed))
				if t.Failed() {
					t.Logf("seed %d\n%s", seed, describe(lying))
					return
				}
			}
		})
	}
}

// TestClaimsAreDecidedLikeTheOracle: NP-51 and NP-62 to NP-64, for all plans of addresses, with and
// without a kubelet that lies, whatever the order of events (NP-54).
func TestClaimsAreDecidedLikeTheOracle(t *testing.T) {
	disputed := 0
	forClaims(t, func(t *testing.T, g *gen, honest, lying oracle.Cluster, _ int, about string) {
		for _, c := range []oracle.Cluster{honest, lying} {
			followed := clusterstate.New(clusterstate.Config{NodeName: here, Features: input(c).Features})
			objects := objectsOf(c)
			g.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
			for _, o := range objects {
				followed.Set(setting(o))
				if g.OneIn(8) {
					followed.Snapshot()
				}
			}
			s := followed.Snapshot()
			for _, q := range g.claimQuestions(c) {
				got, want := s.Evaluate(q.query()), oracle.Evaluate(c, here, q.oracleQuery())
				if disagreement(got, want) != "" {
					t.Errorf("%s: %v: got %v, want %v", about, q, got, want)
					return
				}
				if got.Disputed {
					disputed++
				}
			}
		}
	})
	if disputed == 0 {
		t.Error("no packet of a disputed address")
	}
}

// TestClaimsDoNotDependOnOtherPods: NP-62. The decision about a packet is the same with any number of
// further pods on third nodes, with addresses in whatever ranges.
func TestClaimsDoNotDependOnOtherPods(t *testing.T) {
	forClaims(t, func(t *testing.T, g *gen, honest, lying oracle.Cluster, _ int, about string) {
		for _, c := range []oracle.Cluster{honest, lying} {
			more := c
			more.Pods = slices.Clone(c.Pods)
			for i := range 1 + g.IntN(8) {
				n := 1 + g.IntN(claimNodes-1)
				more.Pods = append(more.Pods, g.claimant(n, 200+i, claimAddresses(random.Pick(g, n, 9, 9, g.IntN(claimNodes)), 100+i)))
			}
			before, after := clusterstate.Compile(input(c)), clusterstate.Compile(input(more))
			for _, q := range g.claimQuestions(c) {
				if a, b := before.Evaluate(q.query()), after.Evaluate(q.query()); a.Allowed() != b.Allowed() {
					t.Errorf("%s: %v: %v, with more pods %v", about, q, a, b)
					return
				}
			}
		}
	})
}

// TestHonestClaimsAreBelieved: NP-62. Where no claim contradicts another one, every pod has its
// addresses, except those in ranges of the evaluating node, which a route has to confirm.
func TestHonestClaimsAreBelieved(t *testing.T) {
	forClaims(t, func(t *testing.T, g *gen, honest, _ oracle.Cluster, _ int, about string) {
		s := clusterstate.Compile(input(honest))
		for _, pod := range honest.Pods {
			for _, a := range compile.NewPod(pod).Addrs {
				isOwn := pod.Spec.NodeName != here && ofNode(honest, here, a)
				if got := s.Endpoint(a); isOwn != (got == nil) || got != nil && got.String() != nameOf(pod) {
					t.Errorf("%s: %v of %s is that of %v", about, a, nameOf(pod), got)
				}
				for _, q := range g.claimQuestions(honest) {
					query := q.query()
					query.Routes = routedAway{}
					if d := s.Evaluate(query); isOwn && q.Src.Addr() == a && (d.Disputed || d.Reason == policy.UnknownPod) {
						t.Errorf("%s: %v, with a route to the other node: %v", about, q, d)
					}
				}
			}
		}
	})
}

// routedAway has routes to other nodes for all addresses.
type routedAway struct{}

func (routedAway) LeadsAway(netip.Addr, []netip.Prefix, []netip.Addr) bool { return true }

// TestLiesLiftNoDenial: NP-62 to NP-64. What is denied because of the labels of a pod that tells the
// truth stays denied, whatever one kubelet writes: pods, addresses of its Node, and pod ranges if that
// has none.
func TestLiesLiftNoDenial(t *testing.T) {
	kept, ofNodes := 0, 0
	forClaims(t, func(t *testing.T, g *gen, honest, lying oracle.Cluster, liar int, about string) {
		node := lying.Nodes[liar]
		for range 3 {
			pod := random.Pick(g, honest.Pods...)
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: pod.Status.PodIPs[0].IP})
		}
		if len(honest.Nodes[liar].Spec.PodCIDRs) == 0 && g.OneIn(2) {
			node.Spec.PodCIDRs = rangesOfNode(g.IntN(claimNodes))
		}
		claimed := compile.NewNode(node).Addrs
		before, after := clusterstate.Compile(input(honest)), clusterstate.Compile(input(lying))
		for _, q := range g.claimQuestions(honest) {
			was, is := before.Evaluate(q.query()), after.Evaluate(q.query())
			peer := q.Src.Addr()
			if was.Direction == policy.Egress {
				peer = q.Dst.Addr()
			}
			if was.Allowed() || oracle.OwnerOf(honest, here, peer) == nil || oracle.OwnerOf(honest, here, peer).Spec.NodeName == claimNode(liar) {
				continue
			}
			if is.Allowed() {
				t.Errorf("%s: %v: %v, and after the lies of node %d %v", about, q, was, liar, is)
				return
			}
			kept++
			if slices.Contains(claimed, peer) {
				ofNodes++
			}
		}
	})
	if kept == 0 || ofNodes == 0 {
		t.Errorf("%d packets were denied, %d with addresses that a lying Node has", kept, ofNodes)
	}
}
