package agent

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestFindingsAreThoseOfTheSnapshot publishes snapshots with findings of different reasons.
func TestFindingsAreThoseOfTheSnapshot(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	for _, test := range []struct {
		reasons []string
		want    string
	}{
		{[]string{"A", "B", "A"}, "netpol_findings{reason=\"A\"} 2\nnetpol_findings{reason=\"B\"} 1\n"},
		{[]string{"B", "C"}, "netpol_findings{reason=\"B\"} 1\nnetpol_findings{reason=\"C\"} 1\n"},
		{nil, ""},
		{[]string{"A"}, "netpol_findings{reason=\"A\"} 1\n"},
	} {
		var findings []policy.Finding
		for _, reason := range test.reasons {
			findings = append(findings, policy.Finding{Reason: reason})
		}
		m.published(t.Context(), change{snapshot: policy.New(policy.Model{Endpoints: policy.NewEndpoints(nil), Findings: findings})})
		want := test.want
		if want != "" {
			want = "# HELP netpol_findings Parts of policies that are not enforced as written and fail closed, by reason.\n# TYPE netpol_findings gauge\n" + want
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "netpol_findings"); err != nil {
			t.Errorf("with %v: %v", test.reasons, err)
		}
	}
}
