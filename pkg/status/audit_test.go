package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// annotate sets the annotation, or removes it if value is empty.
func annotate(value string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		annotations := u.GetAnnotations()
		delete(annotations, compile.EnforcementAnnotation)
		if value != "" {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[compile.EnforcementAnnotation] = value
		}
		u.SetAnnotations(annotations)
	}
}

const (
	auditedLine   = "Enforced=False Audit The policy is audited: what it would deny passes, and is counted and logged."
	evaluatedLine = "Accepted=True PolicyAccepted The whole spec is evaluated, and not enforced, see Enforced."
)

func TestAuditedPolicyConditions(t *testing.T) {
	for _, tc := range []struct {
		name     string
		findings []policy.Finding
		want     []string
	}{
		{"clean", nil, []string{
			evaluatedLine,
			"PartialFailure=False NoFailure No problem was found.",
			"Failure=False NoFailure No problem was found.",
			auditedLine,
		}},
		{"a problem", []policy.Finding{finding("spec.x", policy.InvalidPort, "bad")}, []string{
			"Accepted=True PolicyAccepted Evaluated with 1 problem and not enforced, see PartialFailure and Enforced.",
			"PartialFailure=True InvalidPort spec.x: bad.",
			"Failure=False NoFailure The policy is enforced in part, see PartialFailure.",
			auditedLine,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Conditions(7, tc.findings, true)
			if diff := cmp.Diff(tc.want, lines(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if p := problem(got); p == nil || p.Type != Enforced {
				t.Errorf("the condition to summarize is %v", p)
			}
		})
	}
}

// TestAuditedPoliciesAreReported follows the annotations of a policy and of its namespace.
func TestAuditedPoliciesAreReported(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			s.Install("namespaces")
			spaces := s.Of("namespaces")
			spaces.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
			s.Create(netpol(t, "own", clean))
			s.Create(netpol(t, "other", clean))
			start(t, s, setting{audit: true})
			want := func(what string, audited map[string]bool) {
				t.Helper()
				settle(time.Minute)
				for name, is := range audited {
					conditions := annotated(s, name)
					if status == statustest.Stored {
						conditions = inStatus(s, name)
					}
					found := false
					for _, c := range conditions {
						found = found || c.Type == Enforced && c.Status == metav1.ConditionFalse && c.Reason == Audit
					}
					if found != is {
						t.Errorf("%s: of %s stored %v, want it audited: %v", what, name, lines(conditions), is)
					}
				}
			}
			want("no annotation", map[string]bool{"own": false, "other": false})
			s.Update("x", "own", annotate("audit"))
			want("the policy", map[string]bool{"own": true, "other": false})
			spaces.Update("", "x", annotate("audit"))
			want("the namespace", map[string]bool{"own": true, "other": true})
			s.Update("x", "own", annotate("enforce"))
			want("the policy is an exception", map[string]bool{"own": false, "other": true})
			s.Update("x", "own", annotate("Audit"))
			want("misspelt", map[string]bool{"own": false, "other": true})
			spaces.Update("", "x", annotate(""))
			want("no longer the namespace", map[string]bool{"own": false, "other": false})
			s.Update("x", "own", func(u *unstructured.Unstructured) {
				u.SetAnnotations(map[string]string{"kube-network-policies.sigs.k8s.io/enforcement": "audit"})
			})
			want("by the former name", map[string]bool{"own": true, "other": false})
		})
	})
}

// What the conditions of a policy depend on is kept of its annotations: names without effect, too.
func TestAnnotationsOfConditionsAreKept(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"kind": "NetworkPolicy", "spec": map[string]any{"podSelector": map[string]any{}}}}
	u.SetAnnotations(map[string]string{"example.com/enforcement": "audit", "kube-network-policies.x-k8s.io/enforce": "audit", "example.com/other": "", Annotation: "[]"})
	if _, err := stripTo(compile.StripAnnotations, Annotation)(u); err != nil {
		t.Fatal(err)
	}
	o := &networkingv1.NetworkPolicy{}
	o.SetAnnotations(u.GetAnnotations())
	got := Conditions(1, compile.KindNetworkPolicy.Diagnose(o, compile.AllFeatures()), false)
	if len(u.GetAnnotations()) != 3 || got[1].Status != metav1.ConditionTrue || got[1].Reason != policy.InvalidAnnotation {
		t.Errorf("kept %v: %v", u.GetAnnotations(), lines(got))
	}
}

// The author of a policy gets an Event each time it becomes audited, as a list of policies does
// not show that.
func TestAPolicyThatBecomesAuditedHasAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Install("namespaces")
		s.Of("namespaces").Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		s.Create(netpol(t, "p", clean))
		w := start(t, s, setting{audit: true})
		want := func(n int, when string) {
			t.Helper()
			settle(10 * time.Minute)
			all := events(t, s)
			if len(all) != n {
				t.Fatalf("%s: %d events, want %d: %v", when, len(all), n, all)
			}
			for _, e := range all {
				if e.Type != "Normal" || e.Reason != Audit || e.Regarding.Name != "p" || e.Note != auditMessage {
					t.Errorf("%s: got %+v", when, e)
				}
			}
		}
		want(0, "enforced")
		s.Update("x", "p", annotate(compile.AuditValue))
		want(1, "audited")
		w.stop()
		start(t, s, setting{audit: true, identity: "2"})
		want(1, "another writer")
		s.Update("x", "p", annotate(""))
		want(1, "enforced again")
		s.Update("x", "p", annotate(compile.AuditValue))
		want(2, "audited again")
	})
}
