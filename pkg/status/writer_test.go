package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

func TestConditionsUseSinkOfServer(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server statustest.Status
		read   func(*statustest.Server, string) []metav1.Condition
		other  func(*statustest.Server, string) []metav1.Condition
		clean  string
		writes int
		events int
	}{
		{"no status", statustest.Unserved, annotated, inStatus, "none", 2, 2 + 1},
		{"status that drops conditions", statustest.Dropped, annotated, inStatus, "none", 2, 2 + 1},
		{"status that stores conditions", statustest.Stored, inStatus, annotated, "Accepted @1", 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Behavior{Status: tc.server})
				specs := map[string]string{"clean": clean, "ranges": ranges, "malformed": malformed}
				for name, spec := range specs {
					s.Create(netpol(t, name, spec))
				}
				start(t, s, setting{})
				settle(time.Minute)
				for name, want := range map[string]string{
					"clean":     tc.clean,
					"ranges":    "Accepted PartialFailure/FeatureNotSupported @1",
					"malformed": "Failure/InvalidSelector @1",
				} {
					wantBrief(t, tc.read(s, name), want)
					wantBrief(t, tc.other(s, name), "none")
				}
				if got := len(s.Writes()); got != tc.writes {
					t.Errorf("%d writes, want %d: one for each policy that has conditions", got, tc.writes)
				}
				if got := len(s.Events()); got != tc.events {
					t.Errorf("%d events, want %d", got, tc.events)
				}
			})
		})
	}
}

func TestSteadyStateWritesNothing(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Dropped, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			for i := range 30 {
				s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
			}
			w := start(t, s, setting{})
			settle(time.Minute)
			before, events := s.Requests(isPatch), len(s.Events())
			settle(2 * time.Hour) // 12 resyncs
			w.stop()
			second := start(t, s, setting{identity: "2"})
			settle(time.Hour)
			patches := slices.DeleteFunc(s.Requests(isPatch)[len(before):], func(r statustest.Request) bool { return r.DryRun })
			if len(before) < 30 || len(patches) != 0 || len(s.Events()) != events {
				t.Errorf("%d patches, then %v and %d more events; want none", len(before), patches, len(s.Events())-events)
			}
			if got := testutil.ToFloat64(second.metrics.conditions.WithLabelValues("NetworkPolicy", PartialFailure, "FeatureNotSupported")); got != 30 {
				t.Errorf("the metric counts %v policies with problems, want 30", got)
			}
		})
	})
}

func TestEachGenerationIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", clean))
		w := start(t, s, setting{})
		settle(time.Minute)
		for _, spec := range []string{ranges, malformed, clean} {
			setSpec(t, s, "p", spec)
			s.Update("x", "p", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"spec": fmt.Sprint(len(spec))}) })
			settle(time.Minute)
		}
		if got := s.Policy("x", "p").GetAnnotations(); len(got) != 0 {
			t.Errorf("annotations %v on a policy that is enforced as written", got)
		}
		w.wantWrites(t, AnnotationSink, success, 3)
		if got := len(s.Events()); got != 2+1 {
			t.Errorf("%d events, want 2 about the second generation and 1 about the third", got)
		}
	})
}

func TestConditionsFollowFeatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		s.Create(netpol(t, "p", ranges))
		w := start(t, s, setting{})
		settle(time.Minute)
		before := inStatus(s, "p")
		wantBrief(t, before, "Accepted PartialFailure/FeatureNotSupported @1")
		w.stop()
		start(t, s, setting{features: compile.AllFeatures()})
		settle(time.Minute)
		after := inStatus(s, "p")
		wantBrief(t, after, "Accepted @1")
		if !after[0].LastTransitionTime.Equal(&before[0].LastTransitionTime) || after[1].LastTransitionTime.Equal(&before[1].LastTransitionTime) {
			t.Errorf("transition times of Accepted and PartialFailure: %v and %v, before %v and %v; want only the second to change",
				after[0].LastTransitionTime, after[1].LastTransitionTime, before[0].LastTransitionTime, before[1].LastTransitionTime)
		}
	})
}

// A client creates a policy, patches it and updates the returned object as soon as
// the API server answers: there is no write in between.
func TestUnsettledPolicyIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		w := start(t, s, setting{})
		settle(time.Minute)
		s.Create(netpol(t, "p", clean))
		for _, spec := range []string{ranges, malformed, ranges} {
			settle(quietTime - time.Millisecond)
			if got := len(s.Writes()); got != 0 {
				t.Fatalf("%d writes while the policy changes, want none", got)
			}
			setSpec(t, s, "p", spec)
		}
		settle(time.Minute)
		wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @4")
		w.wantWrites(t, AnnotationSink, success, 1)
	})
}

// A policy changes while its conditions are written: no generation gets the
// conditions of another generation.
func TestChangeDuringWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", clean))
		w := start(t, s, setting{})
		settle(time.Minute)
		s.SetBehavior(statustest.Behavior{Delay: 2 * time.Second})
		specs := []string{ranges, malformed, clean}
		for i := range 30 {
			setSpec(t, s, "p", specs[i%3])
			settle(time.Duration(i%4)*time.Second + 500*time.Millisecond)
			if c := annotated(s, "p"); len(c) > 0 && c[0].ObservedGeneration > int64(i+2) {
				t.Fatalf("conditions of generation %d, the policy has %d", c[0].ObservedGeneration, i+2)
			} else if len(c) > 0 {
				// The first spec was clean, then specs repeat in order.
				want := brief(Conditions(c[0].ObservedGeneration, compile.KindNetworkPolicy.Diagnose(netpol(t, "p", append([]string{clean}, specs...)[specAt(c[0].ObservedGeneration)]), withoutEndPort), false))
				if brief(c) != want {
					t.Fatalf("conditions %s, want %s", brief(c), want)
				}
			}
		}
		settle(10 * time.Minute)
		wantBrief(t, annotated(s, "p"), "none") // generation 31 is clean
		w.wantWrites(t, AnnotationSink, success, float64(len(s.Writes())))
		if got := testutil.ToFloat64(w.metrics.writes.WithLabelValues("NetworkPolicy", AnnotationSink, string(conflict))); got == 0 {
			t.Error("no conflict: the race did not happen")
		}
	})
}

// specAt returns which of {clean, ranges, malformed, clean} a generation of the test
// above has.
func specAt(generation int64) int {
	if generation == 1 {
		return 0
	}
	return int((generation-2)%3) + 1
}

func TestDeletionDuringWrite(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status, Delay: 2 * time.Second})
			w := start(t, s, setting{})
			for i := range 20 {
				name := fmt.Sprintf("p%d", i)
				s.Create(netpol(t, name, ranges))
				settle(time.Duration(i) * 500 * time.Millisecond)
				s.Delete("x", name)
			}
			settle(time.Hour)
			if got := s.Len(); got != 0 {
				t.Errorf("%d policies exist again", got)
			}
			if got := w.metrics.oldest(); got != 0 {
				t.Errorf("a deleted policy has waited %v s", got)
			}
			if got := testutil.CollectAndCount(w.metrics.conditions); got > 0 && testutil.ToFloat64(w.metrics.conditions.WithLabelValues("NetworkPolicy", Accepted, PolicyAccepted)) != 0 {
				t.Error("the metric counts deleted policies")
			}
		})
	})
}

func TestFieldsOfOtherManagersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		p := netpol(t, "p", ranges)
		p.Annotations = map[string]string{"example.com/owner": "team"}
		s.Create(p)
		theirs := map[string]any{"type": "Programmed", "status": "True", "reason": "Yes", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
		s.Update("x", "p", func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedSlice(u.Object, []any{theirs}, "status", "conditions")
		})
		start(t, s, setting{})
		settle(time.Minute)
		wantBrief(t, inStatus(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		got := s.Policy("x", "p")
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		if len(conditions) != 4 || !slices.ContainsFunc(conditions, func(c any) bool { return fmt.Sprint(c) == fmt.Sprint(theirs) }) {
			t.Errorf("conditions %v, want ours and %v", conditions, theirs)
		}
		if got.GetAnnotations()["example.com/owner"] != "team" || got.GetGeneration() != 1 {
			t.Errorf("annotations %v, generation %d; want them unchanged", got.GetAnnotations(), got.GetGeneration())
		}
	})
}

func TestMalformedAnnotationIsRewritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", ranges))
		w := start(t, s, setting{})
		settle(time.Minute)
		for _, value := range []string{"", "[]", "no JSON", `[{"type":"Accepted"}]`} {
			s.Update("x", "p", func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{Annotation: value}) })
			settle(time.Minute)
			wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		}
		w.wantWrites(t, AnnotationSink, success, 5)
	})
}

// Another client removes all conditions of all policies. They come back, each by one write and
// with its content.
func TestWipedConditionsComeBack(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			specs := []string{clean, ranges, malformed}
			var names []string
			for i := range 30 {
				names = append(names, fmt.Sprintf("p%d", i))
				s.Create(netpol(t, names[i], specs[i%len(specs)]))
			}
			start(t, s, setting{})
			settle(time.Minute)
			conditions := func(name string) []metav1.Condition {
				if status == statustest.Stored {
					return inStatus(s, name)
				}
				return annotated(s, name)
			}
			before, writes := map[string][]metav1.Condition{}, len(s.Writes())
			marked := 0
			for _, name := range names {
				before[name] = conditions(name)
				if len(before[name]) > 0 {
					marked++
				}
			}

			for _, name := range names {
				s.Update("x", name, func(u *unstructured.Unstructured) {
					u.SetAnnotations(nil)
					delete(u.Object, "status")
				})
			}
			settle(time.Minute)

			if marked == 0 || len(s.Writes())-writes != marked {
				t.Errorf("%d writes for %d policies with conditions", len(s.Writes())-writes, marked)
			}
			for _, name := range names {
				if got := conditions(name); !sameConditions(got, before[name]) {
					t.Errorf("%s: %s, want %s", name, brief(got), brief(before[name]))
				}
			}
		})
	})
}

// Enabling the server's feature gate adds the status, and an upgrade removes it.
func TestConditionsMoveBetweenSinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", ranges))
		w := start(t, s, setting{})
		settle(time.Minute)
		before := annotated(s, "p")
		s.SetBehavior(statustest.Behavior{Status: statustest.Stored})
		settle(25 * time.Minute) // the next resync after the probe is due
		after := inStatus(s, "p")
		wantBrief(t, after, "Accepted PartialFailure/FeatureNotSupported @1")
		wantBrief(t, annotated(s, "p"), "none")
		if len(after) == 3 && !after[0].LastTransitionTime.Equal(&before[0].LastTransitionTime) {
			t.Error("the transition time of Accepted changed with the sink")
		}
		// An annotation that another client has copied is removed.
		s.Update("x", "p", func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{Annotation: "[]"}) })
		settle(time.Minute)
		if text := fmt.Sprint(s.Policy("x", "p").Object); strings.Contains(text, Annotation) {
			t.Errorf("the annotation is left: %s", text)
		}
		s.Update("x", "p", func(u *unstructured.Unstructured) { delete(u.Object, "status") })
		s.SetBehavior(statustest.Behavior{})
		settle(25 * time.Minute)
		wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		w.wantWrites(t, AnnotationSink, success, 4) // write, remove, remove the copy, write
	})
}

// With its feature gate disabled a server still returns the conditions that it has.
// A new writer does not mistake it for one that stores them.
func TestStatusThatDropsIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		s.Create(netpol(t, "p", ranges))
		w := start(t, s, setting{})
		settle(time.Minute)
		w.stop()
		s.SetBehavior(statustest.Behavior{Status: statustest.Dropped})
		start(t, s, setting{})
		settle(time.Minute)
		wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		wantBrief(t, inStatus(s, "p"), "none") // Clear works
	})
}

// Authors read the summary with kubectl describe, which does not show a long
// annotation whole.
func TestSummaryAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		for name, spec := range map[string]string{"clean": clean, "ranges": ranges, "malformed": malformed} {
			s.Create(netpol(t, name, spec))
		}
		w := start(t, s, setting{})
		settle(time.Minute)
		check := func() {
			t.Helper()
			for name, want := range map[string]string{
				"clean":     "",
				"ranges":    "spec.ingress[0].ports[0].endPort: ",
				"malformed": "spec.podSelector: ",
			} {
				got := s.Policy("x", name).GetAnnotations()[SummaryAnnotation]
				if !strings.HasPrefix(got, want) || (want == "") != (got == "") || len(got) > maxSummary {
					t.Errorf("%s: the summary is %q, want %q and at most %d bytes", name, got, want, maxSummary)
				}
			}
		}
		check()
		// Another client removes or changes it.
		for _, change := range []func(map[string]string){
			func(all map[string]string) { delete(all, SummaryAnnotation) },
			func(all map[string]string) { all[SummaryAnnotation] = "nothing" },
		} {
			s.Update("x", "ranges", func(u *unstructured.Unstructured) {
				all := u.GetAnnotations()
				change(all)
				u.SetAnnotations(all)
			})
			settle(time.Minute)
			check()
		}
		// A policy that was copied with the annotations of another one.
		s.Update("x", "clean", func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{SummaryAnnotation: "copied"}) })
		settle(time.Minute)
		check()
		w.wantWrites(t, AnnotationSink, success, 2+2+1)
	})
}

func TestConditionPrefix(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			s.Create(netpol(t, "p", ranges))
			first := start(t, s, setting{})
			settle(time.Minute)
			first.stop()
			start(t, s, setting{prefix: "example.com"})
			settle(time.Hour)
			if got := len(s.Writes()); got != 2 {
				t.Errorf("%d writes, want one without the prefix and one with it", got)
			}
			text := fmt.Sprint(s.Policy("x", "p").Object)
			if strings.Count(text, "example.com/Accepted") != 1 || strings.Count(text, "Accepted") != 1+strings.Count(text, PolicyAccepted) {
				t.Errorf("want one Accepted, with the prefix: %s", text)
			}
		})
	})
}

func TestWriteRateWithTenThousandPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute, and two with the race detector; runs without -short")
	}
	synctest.Test(t, func(t *testing.T) {
		const policies = 10_000
		s := statustest.NewServer(statustest.Behavior{Delay: 10 * time.Millisecond})
		for i := range policies {
			s.Create(netpol(t, fmt.Sprintf("p%05d", i), ranges))
		}
		w := start(t, s, setting{noEvents: true})
		begin := time.Now()
		settle(10 * time.Minute)
		if oldest := w.metrics.oldest(); oldest < 590 || oldest > 600 {
			t.Errorf("the oldest policy has waited %v s after 10 minutes", oldest)
		}
		settle(policies / 5 * time.Second)
		writes := s.Writes()
		if len(writes) != policies {
			t.Fatalf("%d writes, want %d", len(writes), policies)
		}
		took := writes[policies-1].At.Sub(begin)
		if want := policies / 5 * time.Second; took > want+10*time.Second || took < want-10*time.Second {
			t.Errorf("all were written after %v, want %v", took, want)
		}
		for i := 25; i < policies; i += 25 { // 5 s of writes
			if i >= 50 && writes[i].At.Sub(writes[i-25].At) < 4900*time.Millisecond {
				t.Fatalf("25 writes in %v", writes[i].At.Sub(writes[i-25].At))
			}
		}
		if got := w.metrics.oldest(); got != 0 {
			t.Errorf("a policy has waited %v s after all writes", got)
		}
	})
}
