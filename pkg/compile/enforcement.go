package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// EnforcementAnnotation is the annotation of a policy or a namespace that says whether
// its policies are enforced (AU-1 to AU-3).
const EnforcementAnnotation = "kube-network-policies.sigs.k8s.io/enforcement"

// Enforcement is whether a policy is enforced.
type Enforcement uint8

// What EnforcementAnnotation can say.
const (
	Unspecified Enforcement = iota // there is no annotation
	Enforced                       // "enforce", or a value that is not known
	Audited                        // "audit": evaluated and not enforced
)

// The values of EnforcementAnnotation.
const (
	EnforceValue = "enforce"
	AuditValue   = "audit"
)

var enforcementField = field.NewPath("metadata", "annotations").Key(EnforcementAnnotation)

// EnforcementOf returns what the annotation of o says. A value that is not known is
// Enforced, and known is false.
func EnforcementOf(o metav1.Object) (e Enforcement, known bool) {
	value, ok := o.GetAnnotations()[EnforcementAnnotation]
	switch {
	case !ok:
		return Unspecified, true
	case value == AuditValue:
		return Audited, true
	}
	return Enforced, value == EnforceValue
}

// Audits reports whether the policy o is evaluated and not enforced, by its annotation and
// without one by that of its namespace, which is nil if it has none.
func Audits(o, namespace metav1.Object) bool {
	e, _ := EnforcementOf(o)
	if e == Unspecified && namespace != nil {
		e, _ = EnforcementOf(namespace)
	}
	return e == Audited
}

// StripAnnotations returns those of an object's annotations that policy needs, nil for
// none.
func StripAnnotations(all map[string]string) map[string]string {
	var needed map[string]string
	for _, name := range []string{EnforcementAnnotation, ForwardedSourcesAnnotation} {
		if value, ok := all[name]; ok {
			if needed == nil {
				needed = map[string]string{}
			}
			needed[name] = value
		}
	}
	return needed
}

// enforcement returns what the annotation of the policy o says.
func (d *diagnosis) enforcement(o metav1.Object) Enforcement {
	e, known := EnforcementOf(o)
	if !known {
		d.find(location{path: enforcementField}, policy.InvalidEnforcement, "%q is neither %s nor %s; the policy is enforced",
			o.GetAnnotations()[EnforcementAnnotation], AuditValue, EnforceValue)
	}
	return e
}

// DiagnoseNamespace returns what of the annotations of a namespace could not be honoured.
func DiagnoseNamespace(o metav1.Object) []policy.Finding {
	_, findings := ForwardedSources(o)
	if _, known := EnforcementOf(o); known {
		return findings
	}
	d := newDiagnosis(KindNamespace.Name, o, Features{})
	d.ref.Namespace, d.ref.Generation = "", 0
	d.find(location{path: enforcementField}, policy.InvalidEnforcement, "%q is neither %s nor %s; the policies of the namespace are enforced",
		o.GetAnnotations()[EnforcementAnnotation], AuditValue, EnforceValue)
	return append(d.findings, findings...)
}
