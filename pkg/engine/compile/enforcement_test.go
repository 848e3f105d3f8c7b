package compile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMisspeltEnforcement: AU-3, an unknown value enforces and is reported.
func TestMisspeltEnforcement(t *testing.T) {
	for _, tc := range []struct {
		value string
		want  Enforcement
		found string // the end of the message; empty if no finding is expected
	}{
		{"audit", Audited, ""},
		{"enforce", Enforced, ""},
		{"Audit", Enforced, `"Audit" is neither audit nor enforce; `},
		{"dry-run", Enforced, `"dry-run" is neither audit nor enforce; `},
		{" audit", Enforced, `" audit" is neither audit nor enforce; `},
		{"", Enforced, `"" is neither audit nor enforce; `},
	} {
		t.Run(tc.value, func(t *testing.T) {
			meta := metav1.ObjectMeta{Namespace: "x", Name: "p", Annotations: map[string]string{EnforcementAnnotation: tc.value, "other": "kept out"}}
			const field = "metadata.annotations[kube-network-policies.x-k8s.io/enforcement]: "
			for _, k := range Kinds {
				o := k.New()
				o.SetNamespace(meta.Namespace)
				o.SetName(meta.Name)
				o.SetAnnotations(meta.Annotations)
				p := k.Compile(k.Strip(o), AllFeatures(), nil)
				if p.Enforcement != tc.want {
					t.Errorf("%v: got %d, want %d", k, p.Enforcement, tc.want)
				}
				var got string
				for _, f := range p.Findings {
					if f.Reason == "InvalidEnforcement" {
						got = f.Field.String() + ": " + f.Message
						if f.Whole {
							t.Errorf("%v: a finding about an annotation means that nothing is enforced", k)
						}
					}
				}
				if want := wanted(field, tc.found, "the policy is enforced"); got != want {
					t.Errorf("%v: found %q, want %q", k, got, want)
				}
			}
			var got string
			for _, f := range DiagnoseNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: meta.Annotations}}) {
				got = f.String()
			}
			if want := wanted("Namespace x: "+field, tc.found, "the policies of the namespace are enforced"); got != want {
				t.Errorf("namespace: found %q, want %q", got, want)
			}
		})
	}
	if e, known := EnforcementOf(&networkingv1.NetworkPolicy{}); e != Unspecified || !known {
		t.Errorf("without an annotation: %d, %v", e, known)
	}
}

func wanted(field, message, effect string) string {
	if message == "" {
		return ""
	}
	return field + message + effect
}
