package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestUnknownFieldsAreFindings(t *testing.T) {
	const ns, subject, ending = `namespaces: {}`, `subject: {namespaces: {}}`, "newer than this implementation, which ignores it"
	all := allKinds(compile.AllFeatures())
	for _, tc := range []struct {
		name, kind, spec string
		want             []string // "field reason text", with text that is in the message
	}{
		{"all known", "NetworkPolicy", `{podSelector: {}}`, nil},
		{"new fields", "NetworkPolicy", `{zone: a, podSelector: {}, ingress: [{ports: [{port: 1, endPort: 0, speed: 2}], action: Deny}]}`, []string{
			"spec.ingress[0].ports[0].endPort InvalidPort", "spec.ingress[0].action FeatureNotSupported " + ending,
			"spec.ingress[0].ports[0].speed FeatureNotSupported " + ending, "spec.zone FeatureNotSupported " + ending,
		}},
		{"another type of a known field", "NetworkPolicy", `{podSelector: []}`, []string{"spec FeatureNotSupported"}},
		{"a new peer", "NetworkPolicy", `{podSelector: {}, ingress: [{from: [{zone: a}]}]}`, []string{
			"spec.ingress[0].from[0] FeatureNotSupported it matches nothing; zone is newer"}},
		{"a peer without any field", "NetworkPolicy", `{podSelector: {}, ingress: [{from: [{}]}]}`, []string{
			"spec.ingress[0].from[0] InvalidPeer"}},

		{"all known", "AdminNetworkPolicy", `{priority: 1, ` + subject + `, ingress: [{action: Deny, from: [{` + ns + `}]}]}`, nil},
		{"a new peer", "AdminNetworkPolicy", `{priority: 1, ` + subject + `, egress: [{action: Deny, to: [{` + ns + `}, {zones: [a]}]}]}`, []string{
			"spec.egress[0].to[1] FeatureNotSupported the rule denies everything; zones is newer"}},
		{"a new port", "AdminNetworkPolicy", `{priority: 1, ` + subject + `, ingress: [{action: Allow, from: [{` + ns + `}], ports: [{icmp: {type: 8}}]}]}`, []string{
			"spec.ingress[0].ports[0] FeatureNotSupported the port matches nothing; icmp is newer"}},
		{"a new field of a rule", "AdminNetworkPolicy", `{priority: 1, ` + subject + `, ingress: [{action: Allow, from: [{` + ns + `}], log: true}]}`, []string{
			"spec.ingress[0].log FeatureNotSupported " + ending}},

		{"a new subject", "BaselineAdminNetworkPolicy", `{subject: {nodes: {}}}`, []string{
			"spec.subject FeatureNotSupported the policy selects no pod; nodes is newer"}},
		{"a new peer", "BaselineAdminNetworkPolicy", `{` + subject + `, egress: [{action: Allow, to: [{domainNames: [a.test]}]}]}`, []string{
			"spec.egress[0].to[0] FeatureNotSupported the rule matches nothing; domainNames is newer"}},

		{"a new protocol", "ClusterNetworkPolicy", `{tier: Admin, priority: 1, ` + subject + `, ingress: [{action: Accept, from: [{` + ns + `}], protocols: [{icmp: {}}]}]}`, []string{
			"spec.ingress[0].protocols[0] FeatureNotSupported the port matches nothing; icmp is newer"}},
		{"a new restriction of a protocol", "ClusterNetworkPolicy", `{tier: Admin, priority: 1, ` + subject + `, ingress: [{action: Pass, from: [{` + ns + `}], protocols: [{tcp: {sourcePort: 1}}]}]}`, []string{
			"spec.ingress[0].protocols[0].tcp FeatureNotSupported the rule denies its peers on every port; sourcePort is newer"}},
		{"a new peer", "ClusterNetworkPolicy", `{tier: Admin, priority: 1, ` + subject + `, ingress: [{action: Pass, from: [{zones: [a]}]}]}`, []string{
			"spec.ingress[0].from[0] FeatureNotSupported the rule denies everything; zones is newer"}},
		{"a peer of a proposal", "ClusterNetworkPolicy", `{tier: Admin, priority: 1, ` + subject + `, ingress: [{action: Pass, from: [{networks: ["10.0.0.0/8"]}]}]}`, []string{
			"spec.ingress[0].from[0].networks FeatureNotSupported the field is one of proposal NPEP-127"}},
		{"a subject of a proposal", "ClusterNetworkPolicy", `{tier: Admin, priority: 1, subject: {serviceAccounts: {namespaceSelector: {}, names: [a]}}}`, []string{
			"spec.subject.serviceAccounts FeatureNotSupported the field is one of proposal NPEP-173"}},
		{"a new tier", "ClusterNetworkPolicy", `{tier: Top, priority: 1, ` + subject + `}`, []string{"spec.tier FeatureNotSupported"}},
	} {
		t.Run(tc.kind+" "+tc.name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(`{metadata: {name: default}, status: {conditions: []}, spec: `+tc.spec+`}`), &u.Object); err != nil {
				t.Fatal(err)
			}
			got := all[slices.IndexFunc(all, func(k Kind) bool { return k.Name == tc.kind })].Diagnose(u)
			if len(got) != len(tc.want) {
				t.Fatalf("findings %v, want %q", got, tc.want)
			}
			for i, f := range got {
				want := strings.SplitN(tc.want[i]+" ", " ", 3)
				if f.Field.String() != want[0] || f.Reason != want[1] || !strings.Contains(f.Message, strings.TrimSpace(want[2])) || f.Policy.Kind != tc.kind {
					t.Errorf("finding %v (%s), want %q", f, f.Reason, tc.want[i])
				}
			}
		})
	}
}

// The converter gives the paths of unknown fields as text only.
func TestStrictConversionErrorText(t *testing.T) {
	u := map[string]any{"spec": map[string]any{"zone": "a", "ingress": []any{map[string]any{"action": "Deny"}}}}
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u, &networkingv1.NetworkPolicy{}, true)
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		t.Fatalf("error %v, want a strict decoding error", err)
	}
	var got []string
	for _, e := range strict.Errors() {
		got = append(got, e.Error())
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{`unknown field "spec.ingress[0].action"`, `unknown field "spec.zone"`}, got); diff != "" {
		t.Errorf("errors differ (-want +got):\n%s", diff)
	}
	fields, err := unknownFields(err)
	if want := []unknownField{{"spec.ingress[0]", "action"}, {"spec", "zone"}}; err != nil || !slices.Equal(fields, want) {
		t.Errorf("unknown fields %v, %v, want %v", fields, err, want)
	}
}

func TestConfigValidation(t *testing.T) {
	_, err := New(Config{Kinds: []Kind{{}}})
	for _, want := range []string{"Discovery", "Events", "Leases", "Dynamic", "LeaseNamespace", "Identity", "Registerer", "Kinds[0]: Name", "Diagnose"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.initialize([]Kind{{Name: "NetworkPolicy", Sinks: []Sink{NewAnnotationSink(nil, networkPolicies.GroupResource(), "")}}})
	i := item{kind: "NetworkPolicy"}
	m.setConditions(i, "NetworkPolicy", Conditions(1, nil, false))
	m.setConditions(i, "NetworkPolicy", Conditions(2, []policy.Finding{finding("spec", policy.InvalidPort, "x")}, false))
	if got := testutil.ToFloat64(m.conditions.WithLabelValues("NetworkPolicy", Accepted, PolicyAccepted)); got != 1 {
		t.Errorf("one policy counts %v times, want once", got)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v: %v", err, problems)
	}
}
