package property

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// TestSelectedAddressesAreTheIsolatedOnes: exactly the packets of isolated pods
// are steered to the evaluator.
func TestSelectedAddressesAreTheIsolatedOnes(t *testing.T) {
	selected := 0
	forClusters(t, 0.1, func(t *testing.T, _ *gen, c oracle.Cluster) {
		for dir, policyType := range directions {
			ask := func(c oracle.Cluster) (got, want []netip.Addr) {
				return compile.Compile(input(c)).Selected(dir), oracle.IsolatedAddresses(c, here, policyType)
			}
			got, want := ask(c)
			selected += len(want)
			if slices.Equal(got, want) {
				continue
			}
			c = shrink(c, func(c oracle.Cluster) bool {
				got, want := ask(c)
				return !slices.Equal(got, want)
			})
			got, want = ask(c)
			t.Errorf("selected for %v: got %v, want %v\n%s", dir, got, want, describe(c))
		}
	})
	t.Logf("%d addresses selected", selected)
}

// TestWhatIsDeniedIsSteered: no packet that policy denies misses the evaluator,
// and none is steered that this node has no say in.
func TestWhatIsDeniedIsSteered(t *testing.T) {
	forClusters(t, 0.1, func(t *testing.T, g *gen, c oracle.Cluster) {
		packets := g.packets(c)
		if missteered(c, packets) != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return missteered(c, packets) != "" })
			t.Errorf("%s\n%s", missteered(c, packets), describe(c))
		}
	})
}

// missteered names a packet that is steered wrongly, or nothing.
func missteered(c oracle.Cluster, packets []packet.Packet) string {
	s := compile.Compile(input(c))
	steersIn, steersOut := steering(s, policy.Ingress), steering(s, policy.Egress)
	for _, p := range packets {
		d := oracle.Judge(c, here, p)
		in, out := steersIn(p.Dst.Addr()), steersOut(p.Src.Addr())
		if d.Ingress.Outcome == oracle.Denied && !in || d.Ingress.Outcome == oracle.NotJudged && in ||
			d.Egress.Outcome == oracle.Denied && !out || d.Egress.Outcome == oracle.NotJudged && out {
			return fmt.Sprintf("%v: steered for ingress: %v, for egress: %v; but %v", p, in, out, d)
		}
	}
	return ""
}

// steering tells of an address whether packets that have it on the subject's
// side are asked about: that of a selected pod, or of one too new to be known.
func steering(s *policy.Snapshot, d policy.Direction) func(netip.Addr) bool {
	selected, ranges := s.Selected(d), s.Ranges(d)
	return func(a netip.Addr) bool {
		inRange := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		return slices.Contains(selected, a) || s.Endpoint(a) == nil && inRange
	}
}

// TestCompileIsPure: it modifies no object, and the same objects give the same
// answers, findings included.
func TestCompileIsPure(t *testing.T) {
	forClusters(t, 0.1, func(t *testing.T, g *gen, c oracle.Cluster) {
		before := clone(c)
		first := compile.Compile(input(c))
		if !reflect.DeepEqual(c, before) {
			t.Errorf("an object was modified; before:\n%s\nafter:\n%s", describe(before), describe(c))
		}
		second := compile.Compile(input(before))
		if diff := difference(first, second, g.packets(c)); diff != "" {
			t.Errorf("two compilations differ: %s\n%s", diff, describe(c))
		}
	})
}

// difference names what two snapshots say differently, or nothing. A decision
// is compared with its reasons: they end in logs, and should not flicker.
func difference(a, b *policy.Snapshot, packets []packet.Packet) string {
	if f, g := a.Findings(), b.Findings(); !reflect.DeepEqual(f, g) {
		return fmt.Sprintf("findings %v and %v", f, g)
	}
	for dir := range directions {
		if s, t := a.Selected(dir), b.Selected(dir); !slices.Equal(s, t) {
			return fmt.Sprintf("selected for %v: %v and %v", dir, s, t)
		}
	}
	for _, p := range packets {
		if d, e := a.Evaluate(p), b.Evaluate(p); d != e {
			return fmt.Sprintf("%v: %v and %v", p, d, e)
		}
	}
	return ""
}
