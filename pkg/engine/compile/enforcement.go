package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// EnforcementAnnotation on a policy, or on a namespace for its policies, says whether they are
// enforced (AU-1 to AU-3).
const EnforcementAnnotation = AnnotationDomain + "enforcement"

// Enforcement is whether a policy is enforced.
type Enforcement uint8

// The meanings of EnforcementAnnotation.
const (
	Unspecified Enforcement = iota // there is no annotation
	Enforced                       // "enforce" or an unknown value
	Audited                        // "audit": evaluated but not enforced
)

// The values of EnforcementAnnotation.
const (
	EnforceValue = "enforce"
	AuditValue   = "audit"
)

// EnforcementOf reads the annotation of o. For an unknown value it returns Enforced and known is
// false.
func EnforcementOf(o metav1.Object) (e Enforcement, known bool) {
	value, _, ok := annotationOf(o, EnforcementAnnotation)
	switch {
	case !ok:
		return Unspecified, true
	case value == AuditValue:
		return Audited, true
	}
	return Enforced, value == EnforceValue
}

// Audits reports whether the policy o is evaluated but not enforced, according to its annotation
// or, without one, that of its namespace. namespace is nil for cluster-scoped policies.
func Audits(o, namespace metav1.Object) bool {
	e, _ := EnforcementOf(o)
	if e == Unspecified && namespace != nil {
		e, _ = EnforcementOf(namespace)
	}
	return e == Audited
}

// enforcement reads the annotation of o and adds a finding if its value is unknown. policies is the
// beginning of the message's last clause.
func (d *diagnosis) enforcement(o metav1.Object, policies string) Enforcement {
	e, known := EnforcementOf(o)
	if !known {
		value, name, _ := annotationOf(o, EnforcementAnnotation)
		d.find(location{path: annotationField(name)}, policy.InvalidEnforcement, "%q is neither %s nor %s; %s enforced", value, AuditValue, EnforceValue, policies)
	}
	return e
}

// DiagnoseNamespace returns findings about the annotations of a namespace.
func DiagnoseNamespace(o metav1.Object) []policy.Finding {
	d := newDiagnosis(KindNamespace.Name, o, Features{}, nil)
	d.ref.Namespace, d.ref.Generation = "", 0
	d.enforcement(o, "the policies of the namespace are")
	d.denial(o)
	d.report(o)
	d.annotations(o, EnforcementAnnotation, ForwardedSourcesAnnotation, DenyAnnotation, ReportAnnotation)
	_, findings := ForwardedSources(o)
	return append(d.findings, findings...)
}
