package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// ReportAnnotation on a NetworkPolicy says what the status writer reports in annotations, beside
// problems. It does not affect verdicts.
const ReportAnnotation = AnnotationDomain + "report"

// ReportEnforced, the only value of ReportAnnotation, has reported whether the policy is in force on
// all nodes.
const ReportEnforced = "enforced"

// ReportsEnforced reports whether the annotation of the policy o asks whether it is in force.
func ReportsEnforced(o metav1.Object) bool {
	return o.GetAnnotations()[ReportAnnotation] == ReportEnforced
}

// report adds a finding if the value of the annotation is unknown.
func (d *diagnosis) report(o metav1.Object) {
	if value, ok := o.GetAnnotations()[ReportAnnotation]; ok && value != ReportEnforced {
		d.find(location{path: annotationField(ReportAnnotation)}, policy.InvalidAnnotation, "%q is not %s; nothing is reported", value, ReportEnforced)
	}
}
