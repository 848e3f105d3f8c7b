package lint

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

type gen struct{ *random.Gen }

func newGen(seed uint64) gen {
	return gen{&random.Gen{Rand: rand.New(rand.NewPCG(seed, 0)), Namespaces: []string{"x", "y"}, CIDRs: random.CIDRs, Rules: 2}}
}

// cluster returns objects of every kind that rules look at.
func (g gen) cluster() Input {
	in := Input{Features: compile.AllFeatures(), Partial: g.OneIn(2)}
	for i := range 2 {
		in.Nodes = append(in.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1), Labels: g.Labels()},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", i+1)}}},
		})
	}
	for _, ns := range g.Namespaces {
		if !g.OneIn(5) {
			in.Namespaces = append(in.Namespaces, g.Namespace(ns))
		}
		for i := range g.IntN(4) {
			in.Pods = append(in.Pods, g.pod(ns, i))
		}
		in.Services = append(in.Services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "s"},
			Spec: corev1.ServiceSpec{ClusterIP: random.Pick(g, "10.1.0.3", "", corev1.ClusterIPNone), Selector: g.Labels(), Ports: []corev1.ServicePort{
				{Port: 81, TargetPort: random.Pick(g, intstr.FromInt32(80), intstr.FromString("web"), intstr.IntOrString{})},
			}},
		})
	}
	for i := range g.IntN(7) {
		in.Policies = append(in.Policies, g.NetworkPolicy(random.Pick(g, g.Namespaces...), fmt.Sprintf("np%d", i)))
	}
	for i := range g.IntN(3) {
		in.Policies = append(in.Policies, g.AdminNetworkPolicy(fmt.Sprintf("anp%d", i)), g.ClusterNetworkPolicy(fmt.Sprintf("cnp%d", i)))
	}
	if g.OneIn(2) {
		in.Policies = append(in.Policies, g.BaselineAdminNetworkPolicy("default"))
	}
	return in
}

func (g gen) pod(ns string, i int) *corev1.Pod {
	pod := g.Pod(ns, fmt.Sprintf("p%d", i))
	n := len(ns)*16 + int(ns[0])%16*8 + i
	if g.OneIn(3) {
		pod.Labels["k8s-app"] = "kube-dns"
	}
	for _, ip := range random.Pick(g, nil, []string{"10.1.0.%d"}, []string{"10.1.0.%d", "fd00:1::%d"}) {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf(ip, n)})
	}
	return pod
}

// Check accepts every object that an API server can store, and the order of the objects
// does not change its findings.
func TestEveryClusterCanBeChecked(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(1500) {
		g := newGen(seed)
		in := g.cluster()
		want := Check(in)
		for _, f := range want {
			seen[f.Rule] = true
			if RuleNamed(f.Rule) == nil || f.Message == "" || f.Why == "" || f.Fix == "" || f.Name == "" {
				t.Fatalf("seed %d: an incomplete finding: %+v", seed, f)
			}
		}
		shuffled := in
		shuffled.Policies, shuffled.Pods, shuffled.Services = reversed(in.Policies), reversed(in.Pods), reversed(in.Services)
		if got := Check(shuffled); !slices.Equal(got, want) {
			t.Fatalf("seed %d: in another order\ngot  %#v\nwant %#v", seed, got, want)
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d rules found anything", len(seen))
	}
}

func reversed[T any](s []T) []T {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// evaluated returns the cluster that answers which connections are allowed.
func evaluated(in Input) *reachability.Cluster {
	pods := slices.Clone(in.Pods)
	for i, p := range pods {
		if !p.Spec.HostNetwork && len(p.Status.PodIPs) == 0 {
			p = p.DeepCopy()
			p.Status.PodIPs = workloads.Placeholders(i+1, true, true)
			pods[i] = p
		}
	}
	return reachability.New(clusterstate.Input{Features: in.Features, Namespaces: in.Namespaces, Pods: pods, Nodes: in.Nodes, Policies: in.Policies})
}

// unchanged fails the test if the clusters allow different connections.
func unchanged(t *testing.T, seed uint64, before, after Input, what string) {
	t.Helper()
	b, a := evaluated(before), evaluated(after)
	addresses := slices.Concat(reachability.ExternalAddresses(reachability.Translated{}, b, a), reachability.NodeAddresses(b, a))
	d, err := reachability.Compare(reachability.Names{}, b, a, reachability.PortRanges(b, a), addresses, reachability.FirstCommon)
	if err != nil {
		t.Fatal(err)
	}

	if len(d.Changes) > 0 {
		t.Fatalf("seed %d: without %s: %+v", seed, what, d.Changes)
	}
}

// Policies that shadowed finds can be removed without changing any connection.
func TestShadowedPoliciesChangeNothing(t *testing.T) {
	count := 0
	for seed := range uint64(3000) {
		in := newGen(seed).cluster()
		removed := map[string]bool{}
		for _, f := range Check(in) {
			if f.Rule == "shadowed" {
				removed[f.Object.String()] = true
			}
		}
		if len(removed) == 0 {
			continue
		}
		count++
		after := in
		after.Policies = slices.DeleteFunc(slices.Clone(in.Policies), func(p compile.Object) bool { return removed[object(p).String()] })
		unchanged(t, seed, in, after, fmt.Sprint(removed))
	}
	if count < 30 {
		t.Errorf("only %d clusters had any", count)
	}
}

func object(p compile.Object) Object {
	return Object{compile.KindOf(p).Name, p.GetNamespace(), p.GetName()}
}

// includes and meet agree with a check of every set of labels.
func TestSelectorAlgebraIsExact(t *testing.T) {
	var sets []labels.Set
	values := []string{"-", "x", "v", "", "other"}
	for _, a := range values {
		for _, b := range values {
			for _, c := range values {
				for _, name := range []string{"-", "x", "y", "other"} {
					set := labels.Set{}
					for key, value := range map[string]string{"a": a, "b": b, "c": c, corev1.LabelMetadataName: name} {
						if value != "-" {
							set[key] = value
						}
					}
					sets = append(sets, set)
				}
			}
		}
	}
	counts := map[bool]int{}
	for seed := range uint64(2000) {
		g := newGen(seed)
		s, o := selector(g), selector(g)
		wantIncludes := true
		for _, set := range sets {
			wantIncludes = wantIncludes && (s.Matches(set) || !o.Matches(set))
		}
		empty := !slices.ContainsFunc(sets, func(set labels.Set) bool { return o.Matches(set) })
		if got := includes(s, o); got != wantIncludes && !empty { // includes is undefined for a selector that selects nothing
			t.Errorf("%q includes %q: got %v", s, o, got)
		}
		counts[wantIncludes]++
	}

	if counts[true] < 100 || counts[false] < 100 {
		t.Errorf("some answers are rare: %v", counts)
	}
}

func selector(g gen) labels.Selector {
	for {
		s := g.Selector()
		if selector, err := metav1.LabelSelectorAsSelector(&s); err == nil {
			return selector
		}
	}
}

// The sets of blocks agree with a check of every address.
func TestBlockAlgebraIsExact(t *testing.T) {
	var all []netip.Addr
	for i := range 256 {
		all = append(all, netip.AddrFrom4([4]byte{255, 255, 255, byte(i)}))
	}
	contains := func(blocks []policy.Block, a netip.Addr) bool {
		return slices.ContainsFunc(blocks, func(b policy.Block) bool {
			return b.Prefix.Contains(a) && !slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return e.Contains(a) })
		})
	}
	counts := map[bool]int{}
	for seed := range uint64(2000) {
		g := newGen(seed)
		one := func() policy.Block {
			prefix := func(least int) netip.Prefix {
				return netip.PrefixFrom(all[g.IntN(256)], least+g.IntN(33-least)).Masked()
			}
			b := policy.Block{Prefix: prefix(24)}
			for _, e := range random.List(g, 3, func() netip.Prefix { return prefix(25) }) {
				if b.Prefix.Bits() < e.Bits() && b.Prefix.Contains(e.Addr()) {
					b.Except = append(b.Except, e)
				}
			}
			return b
		}
		outer, inner := append(random.List(g, 3, one), one()), one()
		want := true
		for _, a := range all {
			in := contains([]policy.Block{inner}, a)
			want = want && (!in || contains(outer, a))
		}
		if got := includesAddresses(addressesOf(outer...), addressesOf(inner)); got != want {
			t.Errorf("%v include %v: got %v", outer, inner, got)
		}
		counts[want]++
	}

	if counts[true] < 50 || counts[false] < 50 {
		t.Errorf("some answers are rare: %v", counts)
	}
}

// No cluster and no comment makes the package panic.
func FuzzCheck(f *testing.F) {
	f.Add(uint64(1), "# netpol:ignore no-dns it has its own")
	f.Fuzz(func(t *testing.T, seed uint64, comment string) {
		findings := Check(newGen(seed).cluster())
		rule, reason, _ := ParseComment(comment)
		var located []Located
		for _, f := range findings {
			located = append(located, Located{Finding: f, Line: 1})
		}

		remaining, ignored := Apply(located, []Ignore{{Rule: rule, Reason: reason, Line: 1, Last: 2}}, nil)
		if n := len(remaining) + len(ignored) - len(findings); n < 0 || n > 1 {
			t.Errorf("of %d findings %d remain and %d are ignored", len(findings), len(remaining), len(ignored))
		}
	})
}
