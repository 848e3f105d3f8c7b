package reachability

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// What is said without addresses holds for pods at any addresses of the ranges, or is said to depend on
// them: then there are addresses for either answer.
func TestAnswersWithoutAddressesHoldForAllAddresses(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 57))
			w := newUnplacedWorld(r)
			without := New(w.input(func(i int) string { return workloads.Placeholders(i+1, !w.v6, w.v6)[0].IP }), w.stated...)
			ports := []Port{{Proto: 6, Number: 80}, {Proto: 6, Number: 443}}
			said := map[string]answers{}
			sides := w.sides(without)
			for _, port := range ports {
				o := without.Overview(sides, sides, port, FirstCommon)
				for i := range sides {
					for j := range sides {
						src, dst := &sides[i].Members[0], &sides[j].Members[0]
						a := answers{every: o.Every(i, j).All(), some: !o.Every(i, j).Empty() || !o.Some(i, j).Empty()}
						if i != j && a.every != without.Allowed(src, dst, port, FirstCommon) {
							t.Errorf("%v -> %v: the matrix says %+v, Allowed differs", src.Name, dst.Name, a)
						}
						if i != j && (without.Depends(src, dst, port, FirstCommon) != nil) != (a.every != a.some) {
							t.Errorf("%v -> %v: the matrix says %+v, Depends differs", src.Name, dst.Name, a)
						}
						said[fmt.Sprint(i, j, port)] = a
					}
				}
			}
			seen := map[string]answers{}
			for range 300 {
				used := map[string]bool{}
				placed := New(w.input(func(int) string { return w.address(r, used) }))
				for _, port := range ports {
					for i := range w.pods {
						for j := range w.pods {
							key := fmt.Sprint(i, j, port)
							from, to := placed.endpoints[w.pods[i].key()], placed.endpoints[w.pods[j].key()]
							allowed := placed.Evaluate(&from, &to, port, FirstCommon).Allowed
							if a := said[key]; i != j && (a.every && !allowed || !a.some && allowed) {
								t.Fatalf("%s from %v to %v: %v, but %+v without addresses", key, from.Addrs(), to.Addrs(), allowed, a)
							}
							s := seen[key]
							seen[key] = answers{s.every || !allowed, s.some || allowed} // denied and allowed
						}
					}
				}
			}
			for key, a := range said {
				if s := seen[key]; a.every != a.some && w.wide && !(s.every && s.some) {
					t.Errorf("%s is said to depend, but no addresses show it: %+v", key, s)
				}
			}
		})
	}
}

type answers struct{ every, some bool }

// unplacedWorld is a cluster without the addresses of its pods.
type unplacedWorld struct {
	pods     []unplacedPod
	policies []compile.Object
	nodes    []*corev1.Node
	stated   []netip.Prefix
	ranges   []netip.Prefix // where pods may be
	v6, wide bool           // wide says that blocks are not small parts of ranges
}

type unplacedPod struct{ app string }

func (p unplacedPod) key() string { return "a/" + p.app }

func newUnplacedWorld(r *rand.Rand) *unplacedWorld {
	w := &unplacedWorld{v6: r.IntN(4) == 0, wide: true}
	blocks := []string{"0.0.0.0/0", "10.0.0.0/8", "10.128.0.0/9", "172.16.0.0/12", "192.168.0.0/16", "10.0.0.0/9", "203.0.113.0/24"}
	w.ranges = privateRanges[:3]
	if w.v6 {
		blocks = []string{"::/0", "fd00::/8", "fd00::/9", "fd80::/9", "2001:db8::/32"}
		w.ranges = privateRanges[3:]
	}
	if r.IntN(3) == 0 && !w.v6 {
		w.ranges = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16"), netip.MustParsePrefix("10.192.0.0/16")}
		if r.IntN(2) == 0 {
			w.stated = w.ranges
		} else {
			for i, p := range w.ranges {
				w.nodes = append(w.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: corev1.NodeSpec{PodCIDR: p.String(), PodCIDRs: []string{p.String()}}})
			}
		}
	}
	for i := range 2 + r.IntN(3) {
		w.pods = append(w.pods, unplacedPod{app: string(rune('p' + i))})
	}
	for i := range 1 + r.IntN(4) {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("policy-", i)}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": w.pods[r.IntN(len(w.pods))].app}
		peers := w.peers(r, blocks)
		port := intstr.FromInt32([]int32{80, 443}[r.IntN(2)])
		ports := []networkingv1.NetworkPolicyPort{{Port: &port}}[:r.IntN(2)]
		if r.IntN(2) == 0 {
			p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
		} else {
			p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
			p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}}
		}
		w.policies = append(w.policies, p)
	}
	return w
}

// peers returns blocks with and without exceptions, and pods.
func (w *unplacedWorld) peers(r *rand.Rand, blocks []string) []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	for range 1 + r.IntN(2) {
		if r.IntN(4) == 0 {
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.pods[r.IntN(len(w.pods))].app}}
			peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: selector})
			continue
		}
		block := &networkingv1.IPBlock{CIDR: blocks[r.IntN(len(blocks))]}
		for _, b := range blocks {
			whole, part := netip.MustParsePrefix(block.CIDR), netip.MustParsePrefix(b)
			if whole.Bits() < part.Bits() && whole.Overlaps(part) && r.IntN(2) == 0 {
				block.Except = append(block.Except, b)
			}
		}
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: block})
	}
	return peers
}

func (w *unplacedWorld) input(address func(i int) string) clusterstate.Input {
	in := clusterstate.Input{
		Features: compile.AllFeatures(), Policies: w.policies, Nodes: w.nodes,
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}},
	}
	for i, p := range w.pods {
		in.Pods = append(in.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: p.app, Labels: map[string]string{"app": p.app}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address(i)}}},
		})
	}
	return in
}

func (w *unplacedWorld) sides(c *Cluster) []Side {
	var sides []Side
	for _, p := range w.pods {
		members, err := c.Endpoints(p.key())
		if err != nil {
			panic(err)
		}
		sides = append(sides, Side{Namespace: "a", Name: p.app, Members: members})
	}
	return sides
}

// address returns an address of the ranges that was not used.
func (w *unplacedWorld) address(r *rand.Rand, used map[string]bool) string {
	for {
		p := w.ranges[r.IntN(len(w.ranges))]
		bytes := p.Addr().AsSlice()
		for bit := p.Bits(); bit < len(bytes)*8; bit++ {
			bytes[bit/8] |= byte(r.IntN(2)) << (7 - bit%8)
		}
		if a, _ := netip.AddrFromSlice(bytes); !used[a.String()] {
			used[a.String()] = true
			return a.String()
		}
	}
}

// The most copied egress policy reaches no pod, whatever the addresses, and a block of one private range
// reaches pods that are in it.
func TestPrivateRangesAndTheInternet(t *testing.T) {
	block := func(cidr string, except ...string) compile.Object {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "out"}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": "p"}
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}}}
		return p
	}
	for name, tc := range map[string]struct {
		policy  compile.Object
		ranges  []netip.Prefix
		allowed bool
		depends []string
	}{
		"the internet only":    {policy: block("0.0.0.0/0", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")},
		"one private range":    {policy: block("10.0.0.0/8"), depends: []string{"allowed if a/q is in 10.0.0.0/8", "denied if a/q is in 172.16.0.0/12 and 192.168.0.0/16"}},
		"that of pods":         {policy: block("10.0.0.0/8"), ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, allowed: true},
		"not that of pods":     {policy: block("10.0.0.0/8"), ranges: []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")}},
		"a part of that":       {policy: block("10.244.0.0/24"), ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, depends: []string{"allowed if a/q is in 10.244.0.0/24", "denied if a/q is in 10.244.1.0-10.244.255.255"}},
		"a single address":     {policy: block("10.0.0.7/32"), depends: []string{"allowed if a/q is in 10.0.0.7/32", "denied if a/q is in 10.0.0.0-10.0.0.6 and 10.0.0.8-10.255.255.255 and 2 more"}},
		"everything":           {policy: block("0.0.0.0/0"), allowed: true},
		"no private addresses": {policy: block("203.0.113.0/24")},
	} {
		t.Run(name, func(t *testing.T) {
			w := &unplacedWorld{pods: []unplacedPod{{app: "p"}, {app: "q"}}, policies: []compile.Object{tc.policy}}
			c := New(w.input(func(i int) string { return workloads.Placeholders(i+1, true, false)[0].IP }), tc.ranges...)
			src, _ := c.Endpoint("a/p")
			dst, _ := c.Endpoint("a/q")
			port := Port{Proto: 6, Number: 80}
			if allowed, depends := c.Allowed(&src, &dst, port, IPv4), c.Depends(&src, &dst, port, IPv4); allowed != tc.allowed || !slices.Equal(depends, tc.depends) {
				t.Errorf("got %v %q, want %v %q", allowed, depends, tc.allowed, tc.depends)
			}
		})
	}
}
