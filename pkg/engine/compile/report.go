package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// ReportAnnotation on a NetworkPolicy or on its namespace says what the status writer reports in
// annotations of the policy. The policy's own takes precedence. It does not affect verdicts.
const ReportAnnotation = AnnotationDomain + "report"

// The values of ReportAnnotation.
const (
	// ReportEnforced also reports whether the policy is in force on all nodes.
	ReportEnforced = "enforced"
	// ReportProblems reports nothing of policies that are enforced as written.
	ReportProblems = "problems"
)

// Report returns the value of ReportAnnotation that applies to the policy o, empty if there is none. The
// namespace is nil if it is not known.
func Report(o, namespace metav1.Object) string {
	for _, of := range []metav1.Object{o, namespace} {
		if of == nil {
			continue
		}
		if value := of.GetAnnotations()[ReportAnnotation]; isReport(value) {
			return value
		}
	}
	return ""
}

// ReportsEnforced reports whether the annotation of the policy o asks whether it is in force.
func ReportsEnforced(o, namespace metav1.Object) bool { return Report(o, namespace) == ReportEnforced }

// ReportsAccepted reports whether conditions of the policy o are stored that report no problem.
func ReportsAccepted(o, namespace metav1.Object) bool { return Report(o, namespace) != ReportProblems }

func isReport(value string) bool { return value == ReportEnforced || value == ReportProblems }

// report adds a finding if the value of the annotation is unknown.
func (d *diagnosis) report(o metav1.Object) {
	if value, ok := o.GetAnnotations()[ReportAnnotation]; ok && !isReport(value) {
		d.find(location{path: annotationField(ReportAnnotation)}, policy.InvalidAnnotation, "%q is neither %s nor %s; it has no effect", value, ReportEnforced, ReportProblems)
	}
}
