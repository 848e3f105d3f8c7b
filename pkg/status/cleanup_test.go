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

func TestCleanupRemovesOursAndNothingElse(t *testing.T) {
	for _, status := range []statustest.Status{statustest.Unserved, statustest.Stored} {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Personality{Status: status})
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
			// Somebody has copied a policy with all that was on it, and owns it.
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
					t.Fatalf("something of ours is left: %s", text)
				}
				if p.GetAnnotations()["example.com/owner"] != "team" {
					t.Fatalf("annotations of others: %v", p.GetAnnotations())
				}
			}
			conditions, _, _ := unstructured.NestedSlice(s.Policy("x", "p0").Object, "status", "conditions")
			if got := fmt.Sprint(conditions); got != fmt.Sprint([]any{theirs}) {
				t.Errorf("conditions of p0 are %v, want %v", got, theirs)
			}
			after := len(s.Writes())
			if after-before < policies || after-before > policies+1 {
				t.Errorf("%d writes for %d policies", after-before, policies)
			}
			if err := cleaner.Cleanup(klog.NewContext(context.Background(), logger)); err != nil || len(s.Writes()) != after {
				t.Errorf("cleaning up twice: %v, %d more writes", err, len(s.Writes())-after)
			}
		})
	}
}

func TestCleanupGoesOnAfterAnErrorAndReturnsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{})
		for i := range 10 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		start(t, s, setting{noEvents: true}).stop()
		w := start(t, s, setting{noEvents: true})
		settle(time.Minute)
		w.stop()
		s.Be(statustest.Personality{Refuse: only(func(r statustest.Request) bool { return isPatch(r) && r.Name == "p3" }, statustest.Refused)})
		cleaner, logger := newWriter(t, s, setting{})
		err := cleaner.Cleanup(klog.NewContext(context.Background(), logger))
		if err == nil || !strings.Contains(err.Error(), "x/p3") {
			t.Errorf("error %v, want one about x/p3", err)
		}
		for i := range 10 {
			if _, left := s.Policy("x", fmt.Sprintf("p%d", i)).GetAnnotations()[Annotation]; left != (i == 3) {
				t.Errorf("p%d: annotation is there: %v", i, left)
			}
		}
	})
}
