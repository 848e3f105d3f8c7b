package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
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
		})
	})
}
