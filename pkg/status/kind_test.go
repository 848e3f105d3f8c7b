package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

func TestFieldsFromTheFutureAreFindings(t *testing.T) {
	kind := NetworkPolicies(func(p *networkingv1.NetworkPolicy) []policy.Finding {
		return []policy.Finding{finding("spec", policy.InvalidPort, p.Name)}
	})
	for _, tc := range []struct {
		name, object string
		want         []string // "field reason"
	}{
		{"all known", `{metadata: {name: p}, spec: {podSelector: {}}, status: {conditions: []}}`, []string{"spec InvalidPort"}},
		{"new fields", `{metadata: {name: p}, spec: {zone: a, podSelector: {}, ingress: [{ports: [{port: 1, speed: 2}], action: Deny}]}}`, []string{
			"spec InvalidPort", "spec.ingress[0].action FeatureNotSupported",
			"spec.ingress[0].ports[0].speed FeatureNotSupported", "spec.zone FeatureNotSupported",
		}},
		{"another shape", `{metadata: {name: p}, spec: {podSelector: []}}`, []string{"spec FeatureNotSupported"}},
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(tc.object), &u.Object); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range kind.Diagnose(u) {
			got = append(got, f.Field+" "+f.Reason)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: findings %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := New(Config{Kinds: []Kind{{}}})
	for _, want := range []string{"Client", "Dynamic", "QPS", "Burst", "LeaseNamespace", "Identity", "Registerer", "Kinds[0]: Name", "Diagnose"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.declare([]Kind{NetworkPolicies(nil, NewAnnotationSink(nil, NetworkPolicyResource, ""))})
	i := item{kind: "NetworkPolicy"}
	m.describe(i, "NetworkPolicy", Conditions(1, nil))
	m.describe(i, "NetworkPolicy", Conditions(2, []policy.Finding{finding("spec", policy.InvalidPort, "x")}))
	if got := testutil.ToFloat64(m.conditions.WithLabelValues("NetworkPolicy", Accepted, PolicyAccepted)); got != 1 {
		t.Errorf("one policy counts %v times", got)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v: %v", err, problems)
	}
}
