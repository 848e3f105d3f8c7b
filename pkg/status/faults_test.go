package status

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// Only the message tells a denial of the authorizer from a refusal by admission.
func TestAuthorizerDenialText(t *testing.T) {
	networkPolicies := schema.GroupResource{Group: "networking.k8s.io", Resource: "networkpolicies"}
	for _, tc := range []struct {
		name string
		err  error
		want result
	}{
		{"authorizer", apierrors.NewForbidden(networkPolicies, "p", errors.New(`User "writer" cannot patch resource "networkpolicies" in API group "networking.k8s.io" in the namespace "x"`)), forbidden},
		{"admission plugin", apierrors.NewForbidden(networkPolicies, "p", errors.New("exceeded quota")), refused},
		{"authorizer in the fake server", apierrors.FromObject(statustest.Forbidden(statustest.Request{Verb: "patch", Resource: "networkpolicies", Name: "p", Namespace: "x"})), forbidden},
		{"webhook in the fake server", apierrors.FromObject(statustest.Refused(statustest.Request{})), refused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := resultOf(tc.err); got != tc.want {
				t.Errorf("%q: result %s, want %s", tc.err, got, tc.want)
			}
		})
	}
}

// refuse answers the requests for which want returns true with an error.
func refuse(want func(statustest.Request) bool, answer func(statustest.Request) *metav1.Status) func(statustest.Request) *metav1.Status {
	return func(r statustest.Request) *metav1.Status {
		if want(r) {
			return answer(r)
		}
		return nil
	}
}

func (r *running) logged(text string) int { return strings.Count(r.log(), text) }

func TestForbiddenSinkIsProbedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Refuse: refuse(isPatch, statustest.Forbidden)})
		for i := range 100 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{noEvents: true})
		settle(59 * time.Minute)
		if got := len(s.Requests(isPatch)); got > 6 {
			t.Errorf("%d patches in an hour, want one every 10 minutes for each sink", got)
		}
		if got := w.logged("Sink cannot be used"); got != 2 {
			t.Errorf("%d log messages, want one for each sink:\n%s", got, w.log())
		}
		if got := testutil.ToFloat64(w.metrics.usable.WithLabelValues("NetworkPolicy", AnnotationSink)); got != 0 {
			t.Errorf("sink usable %v, want 0", got)
		}
		if oldest := w.metrics.oldest(); oldest < 3500 {
			t.Errorf("the oldest policy has waited %v s, want nearly an hour", oldest)
		}
		s.SetBehavior(statustest.Behavior{})
		settle(30 * time.Minute)
		w.wantWrites(t, AnnotationSink, success, 100)
		if got := testutil.ToFloat64(w.metrics.usable.WithLabelValues("NetworkPolicy", AnnotationSink)); got != 1 {
			t.Errorf("sink usable %v, want 1", got)
		}
	})
}

// While the writer runs, its right is revoked, or an upgrade of the server removes
// the subresource or its storage.
func TestUnusableSinkIsReplaced(t *testing.T) {
	inStatus := func(r statustest.Request) bool { return isPatch(r) && r.Resource == "networkpolicies/status" }
	for name, later := range map[string]statustest.Behavior{
		"right":   {Status: statustest.Stored, Refuse: refuse(inStatus, statustest.Forbidden)},
		"path":    {Status: statustest.Unserved},
		"storage": {Status: statustest.Dropped},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
				s.Create(netpol(t, "p", clean))
				w := start(t, s, setting{})
				settle(time.Minute)
				s.SetBehavior(later)
				s.Create(netpol(t, "q", ranges))
				settle(time.Minute)
				wantBrief(t, annotated(s, "q"), "Accepted PartialFailure/FeatureNotSupported @1")
				if got := w.logged("Sink cannot be used"); got != 1 {
					t.Errorf("%d log messages, want 1:\n%s", got, w.log())
				}
			})
		})
	}
}

func TestConflictsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "first", ranges))
		w := start(t, s, setting{})
		settle(time.Minute)
		s.SetBehavior(statustest.Behavior{Refuse: refuse(isPatch, statustest.Conflict)})
		for i := range 10 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		settle(time.Hour)
		// 1, 2, 4 … 256 s, then every 5 minutes, and at each resync.
		if got := testutil.ToFloat64(w.metrics.writes.WithLabelValues("NetworkPolicy", AnnotationSink, string(conflict))); got < 100 || got > 300 {
			t.Errorf("%v attempts for 10 policies in an hour, want 100 to 300", got)
		}
		s.SetBehavior(statustest.Behavior{})
		settle(10 * time.Minute)
		w.wantWrites(t, AnnotationSink, success, 11)
		if w.logged("retrying") != 0 {
			t.Errorf("conflicts are logged by default:\n%s", w.log())
		}
	})
}

// A policy that an admission plugin refuses does not delay writes of other policies.
func TestRefusedPolicyDelaysNoOther(t *testing.T) {
	for _, tc := range []struct {
		result result
		answer func(statustest.Request) *metav1.Status
	}{{refused, statustest.Refused}, {invalid, statustest.Invalid}} {
		t.Run(string(tc.result), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := func(r statustest.Request) bool { return isPatch(r) && r.Name == "p0" }
				s := statustest.NewServer(statustest.Behavior{Refuse: refuse(bad, tc.answer)})
				for i := range 20 {
					s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
				}
				w := start(t, s, setting{noEvents: true})
				settle(30 * time.Minute)
				w.wantWrites(t, AnnotationSink, success, 19)
				if got := testutil.ToFloat64(w.metrics.writes.WithLabelValues("NetworkPolicy", AnnotationSink, string(tc.result))); got < 5 || got > 20 {
					t.Errorf("%v attempts in half an hour, want 5 to 20", got)
				}
				if got := w.logged("retrying"); got == 0 || got > 20 {
					t.Errorf("%d lines in the log:\n%s", got, w.log())
				}
			})
		})
	}
}

// Answers of 5xx are counted apart, so that their share can be observed, and retried.
func TestServerErrorsAreCounted(t *testing.T) {
	for name, answer := range map[string]*apierrors.StatusError{
		"500": apierrors.NewInternalError(errors.New("etcd has no leader")),
		"503": apierrors.NewServiceUnavailable("no endpoints of a webhook"),
		"504": apierrors.NewTimeoutError("the request did not complete", 0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failures atomic.Int32
				s := statustest.NewServer(statustest.Behavior{Refuse: func(r statustest.Request) *metav1.Status {
					if r.Verb != "patch" || r.DryRun || failures.Add(1) > 2 {
						return nil
					}
					return &answer.ErrStatus
				}})
				s.Create(netpol(t, "p", ranges))

				w := start(t, s, setting{noEvents: true})
				settle(10 * time.Minute)

				wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
				w.wantWrites(t, AnnotationSink, serverError, 2)
				w.wantWrites(t, AnnotationSink, success, 1)
				w.wantWrites(t, AnnotationSink, failed, 0)
			})
		})
	}
}

func TestServerDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Down: true})
		for i := range 200 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{noEvents: true})
		settle(10 * time.Minute)
		s.SetBehavior(statustest.Behavior{})
		settle(25 * time.Second)
		s.SetBehavior(statustest.Behavior{Down: true}) // during the writes
		settle(10 * time.Minute)
		if written := len(s.Writes()); written == 0 || written == 200 {
			t.Fatalf("%d of 200 were written: the server did not fail during the writes", written)
		}
		if got := strings.Count(w.log(), "\n"); got > 30 {
			t.Errorf("%d log messages in 20 minutes, want at most 30:\n%s", got, w.log())
		}
		s.SetBehavior(statustest.Behavior{})
		settle(10 * time.Minute)
		if got := len(s.Writes()); got != 200 {
			t.Errorf("%d writes, want 200", got)
		}
	})
}

func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored, Delay: 4 * time.Second})
		for i := range 20 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		w := start(t, s, setting{})
		settle(5 * time.Minute)
		w.wantWrites(t, SubresourceSink, success, 20)
	})
}

func TestNextLeaderContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		for i := range 40 {
			s.Create(netpol(t, fmt.Sprintf("p%d", i), ranges))
		}
		first := start(t, s, setting{identity: "1"})
		settle(time.Second)
		second := start(t, s, setting{identity: "2"})
		settle(time.Second)
		if a, b := testutil.ToFloat64(first.metrics.leader), testutil.ToFloat64(second.metrics.leader); a != 1 || b != 0 {
			t.Errorf("leader metrics %v and %v, want 1 and 0", a, b)
		}
		before := inStatus(s, "p0")
		if n := len(s.Writes()); n == 40 {
			t.Fatal("all is written: nothing is left for the second leader")
		}
		first.stop()
		settle(5 * time.Second) // the Lease was released and need not expire
		if got := testutil.ToFloat64(second.metrics.leader); got != 1 {
			t.Fatal("the second writer does not lead")
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
				t.Errorf("the transition time of %s changed with the leader", before[i].Type)
			}
		}
		if managed := s.Policy("x", "p0").GetManagedFields(); len(managed) != 1 || managed[0].Manager != FieldManager {
			t.Errorf("field managers %v, want only %s", managed, FieldManager)
		}
	})
}

// After a time in which no Lease can be renewed, exactly one writer leads.
func TestLostLeaseIsAcquiredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		start(t, s, setting{identity: "1"})
		settle(time.Second)
		start(t, s, setting{identity: "2"})
		settle(time.Second)
		s.SetBehavior(statustest.Behavior{Refuse: refuse(func(r statustest.Request) bool { return r.Resource == "leases" }, statustest.Conflict)})
		settle(time.Minute) // no writer can renew
		s.SetBehavior(statustest.Behavior{})
		settle(time.Minute)
		s.Create(netpol(t, "p", ranges))
		settle(time.Minute)
		if got := len(s.Writes()); got != 1 {
			t.Errorf("%d writes, want 1", got)
		}
	})
}

// A leader whose requests are not answered ends before another writer may lead, which is
// leaseDuration after the last renewal.
func TestLeadershipEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		w := start(t, s, setting{})
		settle(time.Minute)
		if got := testutil.ToFloat64(w.metrics.leader); got != 1 {
			t.Fatal("the writer does not lead")
		}
		s.SetBehavior(statustest.Behavior{Delay: time.Hour})
		time.Sleep(leaseDuration - time.Second/2)
		synctest.Wait()
		if got := testutil.ToFloat64(w.metrics.leader); got != 0 {
			t.Error("the writer leads still when its Lease is about to expire")
		}
	})
}

// The sink works over a real connection, too.
func TestSinkOverHTTP(t *testing.T) {
	s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
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
	o, err := dyn.Resource(networkPolicies).Namespace("x").Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[statustest.Status]result{statustest.Stored: success, statustest.Dropped: unserved, statustest.Unserved: unserved} {
		t.Run(fmt.Sprintf("status %d", status), func(t *testing.T) {
			s.SetBehavior(statustest.Behavior{Status: status})
			sink := &subresource{client: dyn, resource: networkPolicies.GroupResource()}
			o.SetResourceVersion("")
			if got := resultOf(sink.Write(ctx, o, stamp(Conditions(1, nil, false), nil))); got != want {
				t.Errorf("result %s, want %s", got, want)
			}
			if err := sink.Clear(ctx, o); status == statustest.Stored && err != nil {
				t.Error(err)
			}
		})
	}
}
