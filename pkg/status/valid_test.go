package status

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestEventsAreValid creates Events about policies with names of every length and with every
// kind of character where the names are cut. The limits are those of events.k8s.io/v1.
func TestEventsAreValid(t *testing.T) {
	const maxReason, maxAction = 128, 128
	recorder := &eventRecorder{writer: &Writer{cfg: Config{Identity: strings.Repeat("é", 200)}}}
	for _, pattern := range []string{"a", "a-", "a.", "a.b--"} {
		for n := 1; n <= validation.DNS1123SubdomainMaxLength; n++ {
			o := &unstructured.Unstructured{Object: map[string]any{}}
			o.SetName(strings.Repeat(pattern, n)[:n-1] + "z")
			for _, reason := range severity {
				e := recorder.events(o, []policy.Finding{finding("spec", reason, strings.Repeat("é", 1000))})[0]
				if faults := validation.IsDNS1123Subdomain(e.Name); len(faults) > 0 {
					t.Fatalf("policy %q: Event %q: %v", o.GetName(), e.Name, faults)
				}
				if faults := validation.IsQualifiedName(e.ReportingController); len(faults) > 0 || e.Regarding.Name != o.GetName() ||
					len(e.Note) > maxNote || len(e.Reason) > maxReason || len(e.Action) > maxAction || len(e.ReportingInstance) > maxReporterInstance {
					t.Fatalf("policy %q: %v: %+v", o.GetName(), faults, e)
				}
			}
		}
	}
}

// TestConditionsAreValid checks conditions of all reasons, with messages of any length.
func TestConditionsAreValid(t *testing.T) {
	long := strings.Repeat("é", 100_000)
	for _, whole := range []bool{false, true} {
		for _, reason := range severity {
			for _, audited := range []bool{false, true} {
				f := finding("spec", reason, long)
				f.Whole = whole
				conditions := Conditions(1, []policy.Finding{f, f}, audited)
				for _, prefix := range []string{"", "kube-network-policies.x-k8s.io"} {
					all := withTimes(nil, withPrefix(prefix, conditions), metav1.NewTime(time.Unix(1, 0)))
					if errs := metavalidation.ValidateConditions(all, field.NewPath("status")); len(errs) > 0 {
						t.Errorf("%s: %v", reason, errs.ToAggregate())
					}
				}
			}
		}
	}
}

// TestNamesOfTheWriterAreValid checks the names that do not depend on any input.
func TestNamesOfTheWriterAreValid(t *testing.T) {
	for _, key := range []string{Annotation, SummaryAnnotation, compile.EnforcementAnnotation, eventReporter} {
		if faults := validation.IsQualifiedName(key); len(faults) > 0 {
			t.Errorf("%s: %v", key, faults)
		}
	}
	if faults := validation.IsDNS1123Subdomain(LeaseName); len(faults) > 0 {
		t.Errorf("Lease %s: %v", LeaseName, faults)
	}
	if errs := metavalidation.ValidateFieldManager(FieldManager, field.NewPath("fieldManager")); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}
