package status

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

func TestCleanupRemovesOnlyOurConditions(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			const policies = cleanupPage + 100 // two pages
			for i := range policies {
				p := netpol(t, fmt.Sprintf("p%d", i), ranges)
				p.Annotations = map[string]string{"example.com/owner": "team"}
				s.Create(p)
			}
			theirs := map[string]any{"type": "Programmed", "status": "True"}
			s.Update("x", "p0", func(u *unstructured.Unstructured) {
				_ = unstructured.SetNestedSlice(u.Object, []any{theirs}, "status", "conditions")
			})
			w := start(t, s, setting{noEvents: true})
			settle(5 * time.Minute)
			w.stop()
			// Another client has copied a policy with its annotations, and owns them.
			s.Update("x", "p1", func(u *unstructured.Unstructured) {
				u.SetAnnotations(map[string]string{"example.com/owner": "team", Annotation: "copied"})
			})
			before := len(s.Writes())

			cleaner, logger := newWriter(t, s, setting{})
			if err := cleaner.Cleanup(klog.NewContext(context.Background(), logger)); err != nil {
				t.Fatal(err)
			}
			for i := range policies {
				p := s.Policy("x", fmt.Sprintf("p%d", i))
				if text := fmt.Sprint(p.Object); strings.Contains(text, FieldManager) || strings.Contains(text, Annotation) || strings.Contains(text, Accepted) {
					t.Fatalf("fields of ours are left: %s", text)
				}
				if p.GetAnnotations()["example.com/owner"] != "team" {
					t.Fatalf("annotations %v, want those of other managers", p.GetAnnotations())
				}
			}
			conditions, _, _ := unstructured.NestedSlice(s.Policy("x", "p0").Object, "status", "conditions")
			if got := fmt.Sprint(conditions); got != fmt.Sprint([]any{theirs}) {
				t.Errorf("conditions of p0 are %v, want %v", got, theirs)
			}
			after := len(s.Writes())
			if after-before < policies || after-before > policies+1 {
				t.Errorf("%d writes for %d policies, want one for each", after-before, policies)
			}
			if err := cleaner.Cleanup(klog.NewContext(context.Background(), logger)); err != nil || len(s.Writes()) != after {
				t.Errorf("second cleanup: %v, %d writes, want none", err, len(s.Writes())-after)
			}
		})
	})
}

func TestCleanupContinuesAfterError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		for i := range 10 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		start(t, s, setting{noEvents: true}).stop()
		w := start(t, s, setting{noEvents: true})
		settle(time.Minute)
		w.stop()
		s.SetBehavior(statustest.Behavior{Refuse: refuse(func(r statustest.Request) bool { return isPatch(r) && r.Name == "p3" }, statustest.Refused)})
		cleaner, logger := newWriter(t, s, setting{})
		err := cleaner.Cleanup(klog.NewContext(context.Background(), logger))
		if err == nil || !strings.Contains(err.Error(), "x/p3") {
			t.Errorf("error %v, want one about x/p3", err)
		}
		for i := range 10 {
			if _, left := s.Policy("x", fmt.Sprintf("p%d", i)).GetAnnotations()[Annotation]; left != (i == 3) {
				t.Errorf("p%d: annotation left %v, want %v", i, left, i == 3)
			}
		}
	})
}
