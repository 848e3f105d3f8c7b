package status

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// only refuses the requests for which want is true.
func only(want func(statustest.Request) bool, answer func(statustest.Request) *metav1.Status) func(statustest.Request) *metav1.Status {
	return func(r statustest.Request) *metav1.Status {
		if want(r) {
			return answer(r)
		}
		return nil
	}
}

func (r *running) logged(text string) int { return strings.Count(r.log(), text) }

func TestASinkWithoutRightsIsLeftAloneAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{Refuse: only(isPatch, statustest.Forbidden)})
		for i := range 100 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{noEvents: true})
		settle(59 * time.Minute)
		if got := len(s.Requests(isPatch)); got > 6 {
			t.Errorf("%d patches in an hour, want one every 10 minutes", got)
		}
		if got := w.logged("Conditions cannot be stored in this way"); got != 2 {
			t.Errorf("%d lines in the log, want one for each sink:\n%s", got, w.log())
		}
		if got := testutil.ToFloat64(w.metrics.usable.WithLabelValues("NetworkPolicy", AnnotationSink)); got != 0 {
			t.Errorf("the metric says that the sink is usable: %v", got)
		}
		if oldest := w.metrics.oldest(); oldest < 3500 {
			t.Errorf("the oldest has waited for %v s, want nearly an hour", oldest)
		}
		s.Be(statustest.Personality{})
		settle(30 * time.Minute)
		w.wantWrites(t, AnnotationSink, success, 100)
		if got := testutil.ToFloat64(w.metrics.usable.WithLabelValues("NetworkPolicy", AnnotationSink)); got != 1 {
			t.Errorf("the metric says that the sink is not usable: %v", got)
		}
	})
}

// The right is taken away, and the subresource with an upgrade, while the writer
// works.
func TestASinkThatStopsWorkingIsReplaced(t *testing.T) {
	inStatus := func(r statustest.Request) bool { return isPatch(r) && r.Resource == "networkpolicies/status" }
	for name, later := range map[string]statustest.Personality{
		"right":   {Status: statustest.Stored, Refuse: only(inStatus, statustest.Forbidden)},
		"path":    {Status: statustest.Unserved},
		"storage": {Status: statustest.Dropped},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Personality{Status: statustest.Stored})
				s.Create(netpol(t, "p", clean))
				w := start(t, s, setting{})
				settle(time.Minute)
				s.Be(later)
				s.Create(netpol(t, "q", ranges))
				settle(time.Minute)
				wantBrief(t, annotated(s, "q"), "Accepted PartialFailure/FeatureNotSupported @1")
				if got := w.logged("Conditions cannot be stored in this way"); got != 1 {
					t.Errorf("%d lines in the log, want 1:\n%s", got, w.log())
				}
			})
		})
	}
}

func TestConflictsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{})
		s.Create(netpol(t, "first", clean))
		w := start(t, s, setting{})
		settle(time.Minute)
		s.Be(statustest.Personality{Refuse: only(isPatch, statustest.Conflict)})
		for i := range 10 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		settle(time.Hour)
		// 1, 2, 4 … 256 s, then every 5 minutes, and at each resync.
		if got := testutil.ToFloat64(w.metrics.writes.WithLabelValues("NetworkPolicy", AnnotationSink, string(conflict))); got < 100 || got > 300 {
			t.Errorf("%v attempts for 10 policies in an hour", got)
		}
		s.Be(statustest.Personality{})
		settle(10 * time.Minute)
		w.wantWrites(t, AnnotationSink, success, 11)
		if w.logged("will retry") != 0 {
			t.Errorf("conflicts are logged:\n%s", w.log())
		}
	})
}

// What an admission plugin has against one policy does not keep the others from
// being written.
func TestOnePolicyThatIsRefusedStandsAlone(t *testing.T) {
	for _, tc := range []struct {
		result result
		answer func(statustest.Request) *metav1.Status
	}{{refused, statustest.Refused}, {invalid, statustest.Invalid}} {
		t.Run(string(tc.result), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := func(r statustest.Request) bool { return isPatch(r) && r.Name == "p0" }
				s := statustest.NewServer(statustest.Personality{Refuse: only(bad, tc.answer)})
				for i := range 20 {
					s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
				}
				w := start(t, s, setting{noEvents: true})
				settle(30 * time.Minute)
				w.wantWrites(t, AnnotationSink, success, 19)
				if got := testutil.ToFloat64(w.metrics.writes.WithLabelValues("NetworkPolicy", AnnotationSink, string(tc.result))); got < 5 || got > 20 {
					t.Errorf("%v attempts in half an hour", got)
				}
				if got := w.logged("will retry"); got == 0 || got > 20 {
					t.Errorf("%d lines in the log:\n%s", got, w.log())
				}
			})
		})
	}
}

func TestAServerThatIsDownIsWaitedForQuietly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{Down: true})
		for i := range 200 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{noEvents: true})
		settle(10 * time.Minute)
		s.Be(statustest.Personality{})
		settle(25 * time.Second)
		s.Be(statustest.Personality{Down: true}) // in the middle of it
		settle(10 * time.Minute)
		if written := len(s.Writes()); written == 0 || written == 200 {
			t.Fatalf("%d of 200 were written: the server did not go in the middle of it", written)
		}
		if got := strings.Count(w.log(), "\n"); got > 30 {
			t.Errorf("%d lines in the log in 20 minutes:\n%s", got, w.log())
		}
		s.Be(statustest.Personality{})
		settle(10 * time.Minute)
		if got := len(s.Writes()); got != 200 {
			t.Errorf("%d writes, want 200", got)
		}
	})
}

func TestASlowServerIsWrittenTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{Status: statustest.Stored, Delay: 4 * time.Second})
		for i := range 20 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{})
		settle(5 * time.Minute)
		w.wantWrites(t, SubresourceSink, success, 20)
	})
}

func TestTheNextLeaderGoesOnWhereTheLastOneEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{Status: statustest.Stored})
		for i := range 40 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		first := start(t, s, setting{identity: "1"})
		settle(time.Second)
		second := start(t, s, setting{identity: "2"})
		settle(time.Second)
		if a, b := testutil.ToFloat64(first.metrics.leader), testutil.ToFloat64(second.metrics.leader); a != 1 || b != 0 {
			t.Errorf("leaders: %v and %v, want the first alone", a, b)
		}
		before := inStatus(s, "p0")
		if n := len(s.Writes()); n == 40 {
			t.Fatal("all is written: there is nothing to hand over")
		}
		first.stop()
		settle(5 * time.Second) // it gave the Lease up: no need to wait until it expires
		if got := testutil.ToFloat64(second.metrics.leader); got != 1 {
			t.Fatal("the second does not lead")
		}
		settle(time.Minute)
		setSpec(t, s, "p0", ranges[:len(ranges)-1]+`, policyTypes: [Ingress]}`)
		settle(time.Minute)
		if got := len(s.Writes()); got != 41 {
			t.Errorf("%d writes, want one for each of 40 policies and one for a new generation", got)
		}
		after := inStatus(s, "p0")
		wantBrief(t, after, "Accepted PartialFailure/FeatureNotSupported @2")
		for i := range before {
			if !after[i].LastTransitionTime.Equal(&before[i].LastTransitionTime) {
				t.Errorf("the time of %s has changed with the leader", before[i].Type)
			}
		}
		if managed := s.Policy("x", "p0").GetManagedFields(); len(managed) != 1 || managed[0].Manager != FieldManager {
			t.Errorf("managers %v, want %s alone", managed, FieldManager)
		}
	})
}

// The Lease cannot be renewed for a while: somebody leads afterwards, and only
// one.
func TestALostLeaseIsTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Personality{})
		start(t, s, setting{identity: "1"})
		settle(time.Second)
		start(t, s, setting{identity: "2"})
		settle(time.Second)
		s.Be(statustest.Personality{Refuse: only(func(r statustest.Request) bool { return r.Resource == "leases" }, statustest.Conflict)})
		settle(time.Minute) // nobody can renew
		s.Be(statustest.Personality{})
		settle(time.Minute)
		s.Create(netpol(t, "p", clean))
		settle(time.Minute)
		if got := len(s.Writes()); got != 1 {
			t.Errorf("%d writes, want 1", got)
		}
	})
}

// All of it once more over a real connection.
func TestOverARealConnection(t *testing.T) {
	s := statustest.NewServer(statustest.Personality{Status: statustest.Stored})
	s.Create(netpol(t, "p", ranges))
	server := httptest.NewServer(s)
	defer server.Close()
	config := rest.CopyConfig(s.Config())
	config.Host, config.Transport = server.URL, nil
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	o, err := dyn.Resource(NetworkPolicyResource).Namespace("x").Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[statustest.Status]result{statustest.Stored: success, statustest.Dropped: unserved, statustest.Unserved: unserved} {
		s.Be(statustest.Personality{Status: status})
		sink := &subresource{client: dyn, resource: NetworkPolicyResource}
		o.SetResourceVersion("")
		if got := resultOf(sink.Write(ctx, o, stamp(Conditions(1, nil), nil))); got != want {
			t.Errorf("a server of status %d: %s, want %s", status, got, want)
		}
		if err := sink.Clear(ctx, o); status == statustest.Stored && err != nil {
			t.Error(err)
		}
	}
}
