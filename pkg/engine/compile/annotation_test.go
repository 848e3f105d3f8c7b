package compile

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestAnnotationsWithoutEffect: AU-8, a former name is read and reported, and unknown annotations
// are reported.
func TestAnnotationsWithoutEffect(t *testing.T) {
	const (
		ours   = "kube-network-policies.x-k8s.io/"
		former = "kube-network-policies.sigs.k8s.io/"
	)
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        Enforcement
		found       []string // findings for a policy
		ofNamespace []string // findings for a namespace, if they differ
	}{
		"the name":            {map[string]string{ours + "enforcement": "audit"}, Audited, nil, nil},
		"the former name":     {map[string]string{former + "enforcement": "audit"}, Audited, []string{former + "enforcement has been renamed; write " + ours + "enforcement"}, nil},
		"both":                {map[string]string{former + "enforcement": "audit", ours + "enforcement": "enforce"}, Enforced, []string{former + "enforcement has no effect beside " + ours + "enforcement; remove it"}, nil},
		"another domain":      {map[string]string{"example.com/enforcement": "audit"}, Unspecified, []string{"example.com/enforcement has no effect; write " + ours + "enforcement"}, nil},
		"a parent domain":     {map[string]string{"x-k8s.io/enforcement": "audit"}, Unspecified, []string{"x-k8s.io/enforcement has no effect; write " + ours + "enforcement"}, nil},
		"a misspelt name":     {map[string]string{ours + "enforce": "audit"}, Unspecified, []string{ours + "enforce has no effect; of a NetworkPolicy these are read: " + ours + "enforcement, " + ours + "report"}, []string{ours + "enforce has no effect; of a Namespace these are read: " + ours + "enforcement, " + ours + "forwarded-sources, " + ours + "deny, " + ours + "report"}},
		"a former, misspelt":  {map[string]string{former + "audit": ""}, Unspecified, []string{former + "audit has no effect; of a NetworkPolicy these are read: " + ours + "enforcement, " + ours + "report"}, []string{former + "audit has no effect; of a Namespace these are read: " + ours + "enforcement, " + ours + "forwarded-sources, " + ours + "deny, " + ours + "report"}},
		"of a namespace":      {map[string]string{ours + "forwarded-sources": "10.0.0.0/8"}, Unspecified, []string{ours + "forwarded-sources has no effect; of a NetworkPolicy these are read: " + ours + "enforcement, " + ours + "report"}, []string{}},
		"formerly":            {map[string]string{former + "forwarded-sources": "10.0.0.0/8"}, Unspecified, []string{former + "forwarded-sources has no effect; of a NetworkPolicy these are read: " + ours + "enforcement, " + ours + "report"}, []string{former + "forwarded-sources has been renamed; write " + ours + "forwarded-sources"}},
		"deny":                {map[string]string{ours + "deny": "reject"}, Unspecified, []string{ours + "deny has no effect; of a NetworkPolicy these are read: " + ours + "enforcement, " + ours + "report"}, []string{}},
		"a misspelt deny":     {map[string]string{ours + "deny": "Reject"}, Unspecified, []string{ours + "deny has no effect; of a NetworkPolicy these are read: " + ours + "enforcement, " + ours + "report"}, []string{`"Reject" is neither drop nor reject; denied packets are dropped`}},
		"of the other tools":  {map[string]string{ours + "conditions": "[]", ours + "not-enforced": "", ours + "denials": "", ours + "ignore-no-dns": "it is so"}, Unspecified, nil, nil},
		"a report":            {map[string]string{ours + "report": "enforced"}, Unspecified, nil, nil},
		"another report":      {map[string]string{ours + "report": "true"}, Unspecified, []string{`"true" is neither enforced nor problems; it has no effect`}, nil},
		"of other projects":   {map[string]string{"example.com/enforced": "audit", "enforcement": "audit"}, Unspecified, nil, nil},
		"a value, and a name": {map[string]string{former + "enforcement": "Audit"}, Enforced, []string{`"Audit" is neither audit nor enforce; the policy is enforced`, former + "enforcement has been renamed; write " + ours + "enforcement"}, []string{`"Audit" is neither audit nor enforce; the policies of the namespace are enforced`, former + "enforcement has been renamed; write " + ours + "enforcement"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := KindNetworkPolicy.New()
			o.SetNamespace("x")
			o.SetName("p")
			o.SetAnnotations(tc.annotations)
			p := KindNetworkPolicy.Compile(KindNetworkPolicy.Strip(o), AllFeatures(), nil)
			if got := messages(p.Findings); p.Enforcement != tc.want || !slices.Equal(got, tc.found) {
				t.Errorf("enforcement %d, found %q", p.Enforcement, got)
			}
			if tc.ofNamespace == nil {
				tc.ofNamespace = tc.found
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: StripAnnotations(tc.annotations)}}
			if got := messages(DiagnoseNamespace(ns)); !slices.Equal(got, tc.ofNamespace) {
				t.Errorf("of a namespace, found %q", got)
			}
		})
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{former + "forwarded-sources": "10.0.0.0/8"}}}
	if sources, _ := ForwardedSources(ns); len(sources) != 1 {
		t.Errorf("forwarded sources by the former name are %v", sources)
	}
}

func messages(findings []policy.Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, f.Message)
	}
	return all
}
