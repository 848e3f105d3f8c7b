package status

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
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

// A writer removes what versions up to 0.2 said of denied packets, and a copy of another client from the
// annotations; a status is not known by such a copy as one that stores nothing. The other conditions keep
// their times, and there is no Event.
func TestConditionsOfAnEarlierVersionAreRemoved(t *testing.T) {
	for _, status := range []statustest.Status{statustest.Unserved, statustest.Stored} {
		for _, manager := range []string{FieldManager, "author"} {
			for _, spec := range []string{clean, ranges} {
				t.Run(fmt.Sprint(status, manager, spec), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := statustest.NewServer(statustest.Behavior{Status: status})
						s.Create(netpol(t, "p", spec))
						w := start(t, s, setting{})
						settle(time.Minute)
						w.stop()
						before, events := s.Policy("x", "p"), len(s.Events())
						writeAsEarlierVersion(t, w.cfg.Dynamic, before, status == statustest.Stored, manager)
						start(t, s, setting{identity: "2"})
						settle(time.Minute)
						after := s.Policy("x", "p")
						inStatus := status == statustest.Stored
						if text := fmt.Sprint(after.Object); (manager == FieldManager || !inStatus) && (strings.Contains(text, removedType) || strings.Contains(text, RemovedAnnotation)) {
							t.Errorf("it is left: %s", text)
						}
						for _, sink := range []Sink{&annotation{}, &subresource{}} {
							if got, want := ofSpec(sink.Read(after)), ofSpec(sink.Read(before)); !reflect.DeepEqual(got, want) {
								t.Errorf("conditions in the %s are %v, want %v as before", sink.Name(), got, want)
							}
						}
						if got := len(s.Events()); got != events {
							t.Errorf("%d Events, want %d as before", got, events)
						}
					})
				})
			}
		}
	}
}

// writeAsEarlierVersion adds a condition and, unless they are in the status, a line to those of a policy.
func writeAsEarlierVersion(t *testing.T, client dynamic.Interface, o *unstructured.Unstructured, inStatus bool, manager string) {
	t.Helper()
	denials := withTimes(nil, []metav1.Condition{condition(removedType, metav1.ConditionTrue, "PacketsDenied", "3 packets")}, metav1.Now())
	u, options := identity(o), metav1.ApplyOptions{FieldManager: manager, Force: true}
	var subresources []string
	if inStatus {
		subresources = []string{"status"}
		all := append((&subresource{}).Read(o), denials...)
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
			Conditions []metav1.Condition `json:"conditions"`
		}{all})
		if err != nil {
			t.Fatal(err)
		}
		u.Object["status"] = fields
	} else {
		all, err := json.Marshal(append((&annotation{}).Read(o), denials...))
		if err != nil {
			t.Fatal(err)
		}
		annotations := map[string]string{RemovedAnnotation: "3 packets"}
		maps.Copy(annotations, o.GetAnnotations())
		annotations[Annotation] = string(all)
		u.SetAnnotations(annotations)
	}
	if _, err := client.Resource(networkPolicies).Namespace(o.GetNamespace()).Apply(t.Context(), o.GetName(), u, options, subresources...); err != nil {
		t.Fatal(err)
	}
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
