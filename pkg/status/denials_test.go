package status

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status/denials"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// collector returns one of a cluster with one agent, which answers unless that is nil.
func collector(t *testing.T, answer func() []flows.DeniedByPolicy) *denials.Collector {
	t.Helper()
	c, err := denials.New(denials.Config{
		Client: fake.NewClientset(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent", UID: "agent", Labels: map[string]string{"app": "agent"}},
			Spec:       corev1.PodSpec{NodeName: "node-1"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}),
		Namespace: "kube-system", Agents: "app=agent", Registerer: prometheus.NewRegistry(),
		Ask: func(context.Context, *corev1.Pod) (*flows.Denied, error) {
			policies := answer()
			if policies == nil {
				return nil, errors.New("no answer")
			}
			return &flows.Denied{Node: "node-1", Policies: policies}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func deniedBy(kind, namespace, name string, count uint64) flows.DeniedByPolicy {
	return flows.DeniedByPolicy{Policy: flows.Policy{Kind: kind, Namespace: namespace, Name: name}, Count: count, Pairs: []string{"web to db, TCP 80"}}
}

func wantDenials(t *testing.T, when string, o *unstructured.Unstructured, s Sink, want string) {
	t.Helper()
	got := ""
	if c := denialsOf(s.Read(o)); c != nil {
		got = c.Reason + ": " + c.Message
	}
	if !strings.HasPrefix(got, want) || want == "" && got != "" {
		t.Errorf("%s: %s says %q, want %q", when, o.GetName(), got, want)
	}
}

// Denials of policies of all kinds are reported in their conditions, at most once a minute, and
// removed after an hour without denials.
func TestDenialsAreConditions(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			s.Create(netpol(t, "clean", clean))
			s.Create(netpol(t, "ranges", ranges))
			kinds := map[string]statustest.Policies{}
			for _, k := range compile.Kinds[1:] {
				s.Install(k.Resource.Resource)
				kinds[k.Name] = s.Of(k.Resource.Resource)
				o := k.New()
				o.SetName("default")
				kinds[k.Name].Create(o)
			}
			var answer []flows.DeniedByPolicy
			everything := func(count uint64) (all []flows.DeniedByPolicy) {
				all = append(all, deniedBy("NetworkPolicy", "x", "clean", count), deniedBy("NetworkPolicy", "x", "ranges", count), deniedBy("NetworkPolicy", "x", "gone", count))
				for kind := range kinds {
					all = append(all, deniedBy(kind, "", "default", count))
				}
				return all
			}
			answer = everything(3)
			start(t, s, setting{admin: true, denials: func() []flows.DeniedByPolicy { return answer }})
			var sink Sink = &annotation{}
			if status == statustest.Stored {
				sink = &subresource{}
			}
			want := func(when, text string) {
				t.Helper()
				wantDenials(t, when, s.Policy("x", "clean"), sink, text)
				wantDenials(t, when, s.Policy("x", "ranges"), sink, text)
				for _, of := range kinds {
					wantDenials(t, when, of.Policy("", "default"), &subresource{}, text)
				}
			}
			settle(30 * time.Second)
			want("at first", "PacketsDenied: 3 packets denied within an hour, the last at 2000-01-01T00:00:")
			events := len(s.Events())
			answer = everything(4)
			before := len(s.Writes())
			settle(50 * time.Second)
			want("a minute later", "PacketsDenied: 4 packets denied")
			if got, want := len(s.Writes())-before, 2+len(kinds); got != want {
				t.Errorf("%d writes for %d policies", got, want)
			}
			if status == statustest.Unserved {
				const line = "4 packets denied within an hour, the last at 2000-01-01T00:01:"
				for _, name := range []string{"clean", "ranges"} {
					all := s.Policy("x", name).GetAnnotations()
					if got := all[DenialsAnnotation]; !strings.HasPrefix(got, line) || len(got) > maxSummary {
						t.Errorf("the line of %s is %q", name, got)
					}
					if _, has := all[SummaryAnnotation]; has != (name == "ranges") {
						t.Errorf("%s has annotations %v", name, all)
					}
				}
			}
			answer = []flows.DeniedByPolicy{}
			before = len(s.Writes())
			settle(58 * time.Minute)
			want("within an hour", "PacketsDenied: 4 packets denied")
			if got := len(s.Writes()) - before; got != 0 {
				t.Errorf("%d writes although nothing was denied", got)
			}
			settle(5 * time.Minute)
			want("after an hour", "")
			if _, marked := s.Policy("x", "clean").GetAnnotations()[Annotation]; marked {
				t.Error("a policy without problems has an annotation")
			}
			if got := len(s.Events()); got != events {
				t.Errorf("%d Events because of denials", got-events)
			}
		})
	})
}

// Another writer removes reported denials once it knows that there are none.
func TestDenialsOfAnEarlierWriter(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func() []flows.DeniedByPolicy
		want   string
	}{
		"does not ask the agents":  {nil, ""},
		"agents do not answer":     {func() []flows.DeniedByPolicy { return nil }, "PacketsDenied: 3 packets"},
		"agents have seen nothing": {func() []flows.DeniedByPolicy { return []flows.DeniedByPolicy{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Behavior{})
				s.Create(netpol(t, "clean", clean))
				first := start(t, s, setting{identity: "1", denials: func() []flows.DeniedByPolicy {
					return []flows.DeniedByPolicy{deniedBy("NetworkPolicy", "x", "clean", 3)}
				}})
				settle(30 * time.Second)
				wantDenials(t, "at first", s.Policy("x", "clean"), &annotation{}, "PacketsDenied: 3 packets")
				first.stop()
				start(t, s, setting{identity: "2", denials: tc.answer})
				settle(resync + time.Minute)
				wantDenials(t, "with another writer", s.Policy("x", "clean"), &annotation{}, tc.want)
			})
		})
	}
}

// A cleanup removes the line of denials, too.
func TestCleanupRemovesDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "clean", clean))
		start(t, s, setting{denials: func() []flows.DeniedByPolicy {
			return []flows.DeniedByPolicy{deniedBy("NetworkPolicy", "x", "clean", 3)}
		}})
		settle(30 * time.Second)
		w, _ := newWriter(t, s, setting{})
		if err := w.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.Policy("x", "clean").GetAnnotations(); len(got) != 0 {
			t.Errorf("annotations %v are left", got)
		}
	})
}
