package status

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// reporting sets the annotation of what is reported, or removes it if value is empty.
func reporting(value string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		annotations := u.GetAnnotations()
		delete(annotations, compile.ReportAnnotation)
		if value != "" {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[compile.ReportAnnotation] = value
		}
		u.SetAnnotations(annotations)
	}
}

// TestAcceptedIsReported: a policy without a status that is enforced as written says so for its generation, in one
// write, unless it or its namespace asks for problems only.
func TestAcceptedIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", clean))
		s.Install("namespaces")
		s.Of("namespaces").Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		r := start(t, s, setting{audit: true, noEvents: true})
		const accepted = `[{"type":"Accepted","status":"True","observedGeneration":%d,"lastTransitionTime":"%s","reason":"PolicyAccepted","message":"The whole spec can be enforced."}]`
		at := time.Now().Add(quietTime).UTC().Format(time.RFC3339)
		want := func(when, want string, writes int) {
			t.Helper()
			settle(30 * time.Second)
			annotations := s.Policy("x", "p").GetAnnotations()
			if got := annotations[Annotation]; got != want {
				t.Errorf("%s: the annotation is %q, want %q", when, got, want)
			}
			if line, found := annotations[SummaryAnnotation]; found {
				t.Errorf("%s: there is a summary %q", when, line)
			}
			if got := len(s.Writes()); got != writes {
				t.Errorf("%s: %d writes, want %d", when, got, writes)
			}
		}
		want("at first", fmt.Sprintf(accepted, 1, at), 1)
		setSpec(t, s, "p", `{podSelector: {}, policyTypes: [Egress]}`)
		want("another spec", fmt.Sprintf(accepted, 2, at), 2)
		s.Update("x", "p", reporting(compile.ReportProblems))
		want("problems only", "", 3)
		setSpec(t, s, "p", `{podSelector: {}, policyTypes: [Ingress]}`)
		want("problems only, another spec", "", 3)
		s.Of("namespaces").Update("", "x", reporting(compile.ReportProblems))
		s.Update("x", "p", reporting(""))
		want("problems only in the namespace", "", 3)
		s.Of("namespaces").Update("", "x", reporting("something"))
		settle(30 * time.Second)
		if got := len(s.Writes()); got != 4 {
			t.Errorf("%d writes after the namespace asks for nothing that is known, want 4", got)
		}
		r.stop()
		start(t, s, setting{audit: true, noEvents: true})
		settle(2 * resync)
		if got := len(s.Writes()); got != 4 {
			t.Errorf("%d writes after another start, want the 4 before it", got)
		}
	})
}

// TestProblemsDoNotWaitForAccepted: at the first start in a cluster with many policies, and later, the policies
// with problems are reported while most others still wait. Each is written once.
func TestProblemsDoNotWaitForAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		s := statustest.NewServer(statustest.Behavior{})
		s.Install("namespaces")
		s.Of("namespaces").Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		for i := range many {
			s.Create(netpol(t, fmt.Sprintf("clean-%04d", i), clean))
		}
		s.Create(netpol(t, "wrong", malformed))
		start(t, s, setting{audit: true, noEvents: true})
		reported := func(name string) bool {
			return strings.Contains(s.Policy("x", name).GetAnnotations()[Annotation], `"Failure","status":"True"`)
		}
		settle(quietTime + 2*time.Second)
		if !reported("wrong") {
			t.Error("the problem at the first start is not reported")
		}
		waits := "clean-0000"
		for i := 0; s.Policy("x", waits).GetAnnotations()[Annotation] != ""; i++ {
			waits = fmt.Sprintf("clean-%04d", i)
		}
		setSpec(t, s, waits, malformed)
		settle(quietTime + 2*time.Second)
		if !reported(waits) {
			t.Error("a problem that comes later is not reported")
		}
		if writes := len(s.Writes()); writes > many/2 {
			t.Fatalf("%d writes: the others did not wait", writes)
		}
		settle(many / writeRate * time.Second)
		if writes := len(s.Writes()); writes != many+1 {
			t.Errorf("%d writes for %d policies", writes, many+1)
		}
	})
}
