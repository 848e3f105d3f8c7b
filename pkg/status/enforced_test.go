package status

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// enforcedCollector returns one of a cluster with one node, whose agent answers unless that is nil.
func enforcedCollector(t *testing.T, answer func() *inforce.Answer) *enforced.Collector {
	t.Helper()
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent", Labels: map[string]string{"app": "agent"}},
			Spec:       corev1.PodSpec{NodeName: "node-1"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		},
	)
	c, err := enforced.New(enforced.Config{
		Pods: statustest.PodsOf(client, "kube-system"), Nodes: statustest.NodesOf(client), Agents: "app=agent", Registerer: prometheus.NewRegistry(),
		Ask: func(context.Context, *corev1.Pod) (*inforce.Answer, error) {
			if a := answer(); a != nil {
				return a, nil
			}
			return nil, errors.New("no answer")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inForceUpTo is an answer about all kinds.
func inForceUpTo(version string) *inforce.Answer {
	a := &inforce.Answer{Node: "node-1", Kinds: []inforce.Kind{{Kind: "Namespace", Version: version, Seen: version}}}
	for _, k := range compile.Kinds {
		a.Kinds = append(a.Kinds, inforce.Kind{Kind: k.Name, Version: version, Seen: version})
	}
	return a
}

func wantEnforced(t *testing.T, when string, o *unstructured.Unstructured, s Sink, want string) {
	t.Helper()
	got := ""
	for _, c := range s.Read(o) {
		if c.Type == Enforced {
			got = string(c.Status) + " " + c.Reason + ": " + c.Message
			if c.ObservedGeneration != o.GetGeneration() {
				got = "of an earlier generation, " + got
			}
		}
	}
	if got != want {
		t.Errorf("%s: %s says %q, want %q", when, o.GetName(), got, want)
	}
}

const (
	onTheNode = "True EnforcedOnAllNodes: In force on 1 of 1 nodes."
	silent    = "Unknown AgentsDoNotAnswer: In force on 0 of 1 nodes. Not known of node-1: no answer."
)

// Whether a policy is in force is in the same write as its other conditions, where there is a status or
// the author asks for it. Another write follows when that ceases to be so for a minute.
func TestEnforcedIsACondition(t *testing.T) {
	forEachStatus(t, []statustest.Status{statustest.Unserved, statustest.Stored}, func(t *testing.T, status statustest.Status) {
		synctest.Test(t, func(t *testing.T) {
			s := statustest.NewServer(statustest.Behavior{Status: status})
			s.Create(netpol(t, "clean", clean))
			asks := netpol(t, "asks", clean)
			asks.Annotations = map[string]string{compile.ReportAnnotation: compile.ReportEnforced}
			s.Create(asks)
			audited := netpol(t, "audited", clean)
			audited.Annotations = map[string]string{compile.ReportAnnotation: compile.ReportEnforced, compile.EnforcementAnnotation: "audit"}
			s.Create(audited)
			s.Create(netpol(t, "malformed", malformed))
			var sink Sink = &annotation{}
			ofClean := ""
			if status == statustest.Stored {
				sink, ofClean = &subresource{}, onTheNode
			}
			var answer atomic.Pointer[inforce.Answer]
			answer.Store(inForceUpTo("1000000"))
			set := setting{audit: true, identity: "1", inForce: answer.Load}
			w := start(t, s, set)
			settle(30 * time.Second)
			want := func(when, ofClean, ofAsks string) {
				t.Helper()
				wantEnforced(t, when, s.Policy("x", "clean"), sink, ofClean)
				wantEnforced(t, when, s.Policy("x", "asks"), sink, ofAsks)
				wantEnforced(t, when, s.Policy("x", "audited"), sink, "False Audit: "+auditMessage)
				wantEnforced(t, when, s.Policy("x", "malformed"), sink, "")
			}
			writes := func(when string, want int) {
				t.Helper()
				if got := len(s.Writes()); got != want {
					t.Errorf("%s: %d writes, want %d", when, got, want)
				}
			}
			want("at first", ofClean, onTheNode)
			const first = 4 // the clean one is accepted
			writes("at first", first)
			if got := s.Policy("x", "asks").GetAnnotations()[SummaryAnnotation]; got != "" {
				t.Errorf("a policy in force has a summary %q", got)
			}

			w.stop()
			set.identity = "2"
			start(t, s, set)
			settle(resync)
			want("with another writer", ofClean, onTheNode)
			writes("with another writer", first)

			answer.Store(nil)
			settle(50 * time.Second)
			want("within a minute", ofClean, onTheNode)
			settle(3 * time.Minute)
			if ofClean != "" {
				ofClean = silent
			}
			want("after a minute", ofClean, silent)
			settle(time.Hour)
			more := 1
			if status == statustest.Stored {
				more = 2
			}
			writes("an hour later", first+more)
		})
	})
}

// A new generation has the condition of the earlier one until it is known.
func TestEnforcedOfTheNextGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		s.Create(netpol(t, "p", clean))
		var answer atomic.Pointer[inforce.Answer]
		answer.Store(inForceUpTo("1000000"))
		start(t, s, setting{inForce: answer.Load})
		settle(30 * time.Second)
		sink := &subresource{}
		wantEnforced(t, "at first", s.Policy("x", "p"), sink, onTheNode)
		answer.Store(inForceUpTo("1"))
		setSpec(t, s, "p", `{podSelector: {matchLabels: {a: b}}}`)
		settle(30 * time.Second)
		wantEnforced(t, "soon", s.Policy("x", "p"), sink, "of an earlier generation, "+onTheNode)
		answer.Store(inForceUpTo("1000000"))
		settle(5 * time.Second)
		wantEnforced(t, "when it is in force", s.Policy("x", "p"), sink, "True EnforcedOnAllNodes: In force on 1 of 1 nodes, within 31s of the change.")
	})
}

// sayTrue returns the names of the policies whose Enforced condition is true.
func sayTrue(s *statustest.Server, policies int) map[string]bool {
	found := map[string]bool{}
	for i := range policies {
		name := fmt.Sprint("p-", i)
		if c := enforcedOf((&subresource{}).Read(s.Policy("x", name))); c != nil && c.Status == metav1.ConditionTrue {
			found[name] = true
		}
	}
	return found
}

// An agent that comes and goes concerns all policies. That costs 300 writes at once and 60 a minute;
// nothing becomes true meanwhile that is not, and all is said in the end. Changes do not wait for it.
func TestWritesOfAnAgentThatComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const policies = 500
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		for i := range policies {
			s.Create(netpol(t, fmt.Sprint("p-", i), clean))
		}
		var answer atomic.Pointer[inforce.Answer]
		answer.Store(inForceUpTo("1000000"))
		start(t, s, setting{inForce: answer.Load})
		settle(5 * time.Minute)
		if got := len(s.Writes()); got != policies || len(sayTrue(s, policies)) != policies {
			t.Fatalf("%d writes at first", got)
		}
		took := func(what string, minutes int) {
			t.Helper()
			before, began := len(s.Writes()), time.Now()
			for time.Since(began) < time.Duration(minutes)*time.Minute {
				answer.Store(nil)
				settle(90 * time.Second)
				earlier := sayTrue(s, policies)
				settle(90 * time.Second)
				for name := range sayTrue(s, policies) {
					if !earlier[name] {
						t.Errorf("%s becomes true while no agent answers", name)
					}
				}
				answer.Store(inForceUpTo("1000000"))
				settle(3 * time.Minute)
			}
			if got := len(s.Writes()) - before; got > 300+60*minutes {
				t.Errorf("%s, %d writes in %d minutes", what, got, minutes)
			}
		}
		took("an agent that comes and goes", 18)
		setSpec(t, s, "p-0", `{podSelector: {matchLabels: {a: b}}}`)
		settle(10 * time.Second)
		if o := s.Policy("x", "p-0"); enforcedOf((&subresource{}).Read(o)).ObservedGeneration != o.GetGeneration() {
			t.Error("a change waits for its condition")
		}
		answer.Store(nil)
		settle(15 * time.Minute)
		if got := len(sayTrue(s, policies)); got != 0 {
			t.Errorf("%d policies are in force by their condition while no agent answers", got)
		}
		answer.Store(inForceUpTo("1000000"))
		settle(15 * time.Minute)
		if got := len(sayTrue(s, policies)); got != policies {
			t.Errorf("%d policies are in force by their condition", got)
		}
	})
}

// A writer that loses its Lease while agents answer, or while it writes, writes nothing after that.
func TestLeaseLostDuringARound(t *testing.T) {
	const policies = 150
	for name, tt := range map[string]struct {
		hold bool // the agent answers after the Lease is lost
	}{
		"agents have not answered": {hold: true},
		"writes are going on":      {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
				for i := range policies {
					s.Create(netpol(t, fmt.Sprint("p-", i), clean))
				}
				hold := make(chan struct{})
				if !tt.hold {
					close(hold)
				}
				w := start(t, s, setting{inForce: func() *inforce.Answer {
					<-hold
					return inForceUpTo("1000000")
				}})
				settle(10 * time.Second)
				s.SetBehavior(statustest.Behavior{Status: statustest.Stored, Refuse: refuse(func(r statustest.Request) bool { return r.Resource == "leases" }, statustest.Conflict)})
				settle(renewDeadline + 2*retryPeriod)
				if tt.hold {
					close(hold)
				}
				synctest.Wait()
				if got := testutil.ToFloat64(w.metrics.leader); got != 0 {
					t.Fatal("the writer leads still")
				}
				before := len(s.Requests(isPatch))
				if said := len(sayTrue(s, policies)); tt.hold && said > 0 || !tt.hold && (said == 0 || said == policies) {
					t.Errorf("%d of %d policies are in force by their condition when the Lease is lost", said, policies)
				}
				settle(time.Hour)
				if got := len(s.Requests(isPatch)) - before; got != 0 {
					t.Errorf("%d writes without the Lease", got)
				}
				s.SetBehavior(statustest.Behavior{Status: statustest.Stored})
				settle(5 * time.Minute)
				if got := len(sayTrue(s, policies)); got != policies {
					t.Errorf("%d policies are in force by their condition once the Lease is back", got)
				}
			})
		})
	}
}
