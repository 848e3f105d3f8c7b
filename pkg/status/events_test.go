package status

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

func events(t *testing.T, s *statustest.Server) []eventsv1.Event {
	t.Helper()
	var out []eventsv1.Event
	for _, u := range s.Events() {
		var e eventsv1.Event
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func TestEventNamesPolicyFieldAndReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", `{podSelector: {}, ingress: [{ports: [{port: 1, endPort: 2}]}]}`))
		start(t, s, setting{identity: strings.Repeat("long", 100)})
		settle(time.Minute)
		all := events(t, s)
		if len(all) != 1 {
			t.Fatalf("%d events, want 1", len(all))
		}
		e := all[0]
		if e.Type != "Warning" || e.Reason != policy.FeatureNotSupported || e.Action == "" || e.EventTime.IsZero() ||
			e.Regarding.Kind != "NetworkPolicy" || e.Regarding.Name != "p" || e.Regarding.UID != s.Policy("x", "p").GetUID() ||
			!strings.HasPrefix(e.Note, "spec.ingress[0].ports[0].endPort: ") || len(e.ReportingInstance) > 128 || e.ReportingController == "" {
			t.Errorf("got %+v", e)
		}
	})
}

func TestEventsAreLimited(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetName(strings.Repeat("p", 253))
	var findings []policy.Finding
	for i := range 100 {
		findings = append(findings, finding(fmt.Sprintf("spec.ingress[%d]", i), policy.InvalidPort, strings.Repeat("é", 1000)))
	}
	all := (&eventRecorder{writer: &Writer{}}).events(o, findings)
	if len(all) != maxEvents {
		t.Fatalf("%d events, want %d", len(all), maxEvents)
	}
	names := map[string]bool{}
	for _, e := range all {
		names[e.Name] = true
		if len(e.Note) > maxNote || len(e.Name) > 253 || e.Namespace != "default" {
			t.Errorf("note of %d bytes, name of %d, namespace %q", len(e.Note), len(e.Name), e.Namespace)
		}
	}
	if last := all[maxEvents-1].Note; len(names) != maxEvents || !strings.HasSuffix(last, "And 95 more, see the conditions") {
		t.Errorf("%d names, the last note ends %q", len(names), last[len(last)-60:])
	}
}

// Events are created once, also if the server refuses them for a while and a second
// writer takes over.
func TestEventsAreCreatedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unavailable := statustest.Conflict(statustest.Request{})
		unavailable.Code, unavailable.Reason = 500, "InternalError"
		isEvent := func(r statustest.Request) bool { return r.Resource == "events" }
		s := statustest.NewServer(statustest.Behavior{Refuse: refuse(isEvent, func(statustest.Request) *metav1.Status { return unavailable })})
		s.Create(netpol(t, "p", ranges))
		w := start(t, s, setting{})
		settle(time.Minute)
		wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		s.SetBehavior(statustest.Behavior{})
		settle(10 * time.Minute)
		if got := len(s.Events()); got != 2 {
			t.Errorf("%d Events after the server accepts them, want 2", got)
		}
		w.stop()
		start(t, s, setting{identity: "2"})
		settle(time.Hour)
		if got := len(s.Requests(func(r statustest.Request) bool { return isEvent(r) && r.Code == 200 })); got != 2 {
			t.Errorf("%d Events were created, want 2", got)
		}
	})
}

func TestForbiddenEventsDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Refuse: refuse(func(r statustest.Request) bool { return r.Resource == "events" }, statustest.Forbidden)})
		for i := range 20 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{})
		settle(time.Minute)
		w.wantWrites(t, AnnotationSink, success, 20)
		if got := w.logged("Cannot create events"); got < 1 || got > 2 {
			t.Errorf("%d log messages, want 1 or 2:\n%s", got, w.log())
		}
	})
}

// While the server refuses the conditions of a policy, its author gets Events, and
// no more of them once the conditions are stored.
func TestEventsReplaceRefusedConditions(t *testing.T) {
	for name, answer := range map[string]func(statustest.Request) *metav1.Status{"refused": statustest.Refused, "invalid": statustest.Invalid} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
				s.Create(netpol(t, "first", clean))
				start(t, s, setting{})
				settle(time.Minute)
				s.SetBehavior(statustest.Behavior{Status: statustest.Stored, Refuse: refuse(isPatch, answer)})
				s.Create(netpol(t, "p", ranges))
				settle(time.Hour)
				s.SetBehavior(statustest.Behavior{Status: statustest.Stored})
				settle(10 * time.Minute)
				wantBrief(t, inStatus(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
				if got := len(s.Requests(func(r statustest.Request) bool { return r.Resource == "events" })); got != 2 {
					t.Errorf("%d Events were created, want 2", got)
				}
			})
		})
	}
}

// Without a sink there are Events only.
func TestEventsWithoutSinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", ranges))
		s.Create(netpol(t, "q", clean))
		w := start(t, s, setting{noSinks: true})
		settle(time.Hour)
		if got := len(s.Events()); got != 2 {
			t.Errorf("%d events, want 2", got)
		}
		if patches := s.Requests(isPatch); len(patches) != 0 {
			t.Errorf("patches %v, want none", patches)
		}
		if got := w.metrics.oldest(); got != 0 {
			t.Errorf("a policy has waited %v s, but nothing is to be written", got)
		}
	})
}
