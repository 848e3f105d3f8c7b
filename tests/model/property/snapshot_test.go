package property

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// selections are the addresses that are steered for each reason, according to the evaluator and the
// oracle.
var selections = map[string]struct {
	got  func(*policy.Snapshot) []netip.Addr
	want func(oracle.Cluster) []netip.Addr
}{
	"ingress": {
		func(s *policy.Snapshot) []netip.Addr { return s.Selected(policy.Ingress) },
		func(c oracle.Cluster) []netip.Addr {
			return oracle.SelectedAddresses(c, here, networkingv1.PolicyTypeIngress)
		},
	},
	"egress": {
		func(s *policy.Snapshot) []netip.Addr { return s.Selected(policy.Egress) },
		func(c oracle.Cluster) []netip.Addr {
			return oracle.SelectedAddresses(c, here, networkingv1.PolicyTypeEgress)
		},
	},
	"the node": {
		(*policy.Snapshot).SelectedToHost,
		func(c oracle.Cluster) []netip.Addr { return oracle.SelectedToHost(c, here) },
	},
	"domain names": {
		(*policy.Snapshot).SelectedForNames,
		func(c oracle.Cluster) []netip.Addr { return oracle.SelectedForNames(c, here) },
	},
}

// TestSelectedAddressesAreThoseOfTheOracle: the addresses of exactly those pods that some policy
// selects are steered.
func TestSelectedAddressesAreThoseOfTheOracle(t *testing.T) {
	selected := map[string]int{}
	forClusters(t, func(t *testing.T, _ *gen, c oracle.Cluster) {
		for name, selection := range selections {
			ask := func(c oracle.Cluster) (got, want []netip.Addr) {
				return selection.got(clusterstate.Compile(input(c))), selection.want(c)
			}
			got, want := ask(c)
			selected[name] += len(want)
			if slices.Equal(got, want) {
				continue
			}
			smallest := shrink(c, func(c oracle.Cluster) bool {
				got, want := ask(c)
				return !slices.Equal(got, want)
			})
			got, want = ask(smallest)
			t.Errorf("selected for %s: got %v, want %v\n%s", name, got, want, describe(smallest))
		}
	})
	t.Logf("addresses selected: %v", selected)
}

// TestWhatIsDeniedIsSteered: every packet that policy denies is steered, and no packet that this
// node does not decide.
func TestWhatIsDeniedIsSteered(t *testing.T) {
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		questions := g.questions(c)
		if missteered(c, questions) != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return missteered(c, questions) != "" })
			t.Errorf("%s\n%s", missteered(c, questions), describe(c))
		}
	})
}

// missteered describes a packet that is steered wrongly, or returns "".
func missteered(c oracle.Cluster, questions []question) string {
	s := clusterstate.Compile(input(c))
	steersIn, steersOut := steering(s, policy.Ingress), steering(s, policy.Egress)
	toHost := s.SelectedToHost()
	for _, q := range questions {
		_, d, asked := decisions(c, s, q)
		if !asked {
			continue
		}
		in, out := steersIn(q.Dst.Addr()), steersOut(q.Src.Addr())
		if q.toHost {
			in, out = false, slices.Contains(toHost, q.Src.Addr())
		}
		if d.Ingress.Outcome == oracle.Denied && !in || d.Ingress.Outcome == oracle.NotEnforced && in ||
			d.Egress.Outcome == oracle.Denied && !out || d.Egress.Outcome == oracle.NotEnforced && out {
			return fmt.Sprintf("%v: steered for ingress: %v, for egress: %v; but %v", q, in, out, d)
		}
	}
	return ""
}

// steering reports whether packets with this subject address are evaluated: it belongs to a
// selected pod, or may belong to one too new to be known.
func steering(s *policy.Snapshot, d policy.Direction) func(netip.Addr) bool {
	selected, ranges := s.Selected(d), s.Ranges(d)
	return func(a netip.Addr) bool {
		inRange := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		return slices.Contains(selected, a) || s.Endpoint(a) == nil && inRange
	}
}

// TestCompileIsPure: Compile modifies no object, and the same objects give the same decisions and
// findings.
func TestCompileIsPure(t *testing.T) {
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		before := clone(c)
		first := clusterstate.Compile(input(c))
		if diff := cmp.Diff(before, c, cmpopts.IgnoreUnexported(oracle.Cluster{})); diff != "" {
			t.Errorf("an object was modified (-before +after):\n%s", diff)
		}
		second := clusterstate.Compile(input(before))
		if diff := difference(first, second, g.questions(c)); diff != "" {
			t.Errorf("two compilations differ: %s\n%s", diff, describe(c))
		}
	})
}

// difference describes how two snapshots differ, or returns "". It compares decisions with their
// reasons, because these are logged and should not flicker.
func difference(a, b *policy.Snapshot, questions []question) string {
	if f, g := a.Findings(), b.Findings(); !reflect.DeepEqual(f, g) {
		return fmt.Sprintf("findings %v and %v", f, g)
	}
	for name, selection := range selections {
		if s, t := selection.got(a), selection.got(b); !slices.Equal(s, t) {
			return fmt.Sprintf("selected for %s: %v and %v", name, s, t)
		}
	}
	for _, q := range questions {
		if d, e := a.Evaluate(q.query()), b.Evaluate(q.query()); d != e && !reflect.DeepEqual(d, e) {
			return fmt.Sprintf("%v: %v and %v", q, d, e)
		}
	}
	return ""
}
