package compile_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestDiagnoseMatchesSnapshot(t *testing.T) {
	in := fixture()
	in.Features.EndPort = false
	var want []policy.Finding
	for _, o := range []*networkingv1.NetworkPolicy{
		netpol(t, "clean", `{podSelector: {}}`),
		netpol(t, "range", `{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}, {port: 1, protocol: ICMP}]}]}`),
		netpol(t, "selector", `{podSelector: {matchLabels: {a: "?"}}}`),
	} {
		in.Policies = append(in.Policies, o)
		want = append(want, compile.KindNetworkPolicy.Diagnose(o, in.Features)...)
	}
	got := clusterstate.Compile(in.Input).Findings()
	if diff := cmp.Diff(want, got, samePath); len(got) != 3 || diff != "" {
		t.Errorf("the snapshot has %d findings, -Diagnose +snapshot:\n%s", len(got), diff)
	}
}

func TestOnlyWhatVoidsThePolicyIsAboutTheWholeOfIt(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		want       []bool // Whole of each finding
	}{
		{"subject", `{podSelector: {matchLabels: {a: "?"}}, ingress: [{from: [{}]}]}`, []bool{true, false}},
		{"no type is known", `{podSelector: {}, policyTypes: [Up, Down]}`, []bool{true, true}},
		{"one type is not known", `{podSelector: {}, policyTypes: [Up, Ingress]}`, []bool{false}},
		{"no rule is left", `{podSelector: {}, ingress: [{from: [{}]}]}`, []bool{false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []bool
			for _, f := range compile.KindNetworkPolicy.Diagnose(netpol(t, tc.name, tc.spec), compile.AllFeatures()) {
				got = append(got, f.Whole)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("Whole %v, want %v", got, tc.want)
			}
		})
	}
}

func TestUntrackedSCTPIsReportedAndEnforced(t *testing.T) {
	in := fixture()
	in.Features.SCTPUntracked = true
	in.Policies = append(in.Policies,
		netpol(t, "sctp", `{podSelector: {}, ingress: [{ports: [{protocol: SCTP, port: 80}, {port: 80}]}]}`))
	s := check(t, in, `
		allow z/a x/a sctp/80
		allow z/a x/a tcp/80
		deny  z/a x/a sctp/81
	`)
	if got, want := fields(s.Findings()), []string{"spec.ingress[0].ports[0].protocol FeatureNotSupported"}; !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}
