package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// withoutEndPort are the features of the writers in these tests, unless a test sets
// others.
var withoutEndPort = compile.Features{SCTP: true}

const (
	clean = `{podSelector: {}}`
	// ranges has two problems without the EndPort feature.
	ranges = `{podSelector: {}, ingress: [{ports: [{port: 30000, endPort: 32767}, {port: 80}, {port: 1, endPort: 2}]}]}`
	// malformed has a malformed subject.
	malformed = `{podSelector: {matchLabels: {a: "?"}}}`
)

func netpol(t *testing.T, name, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("policy %s: %v", name, err)
	}
	return p
}

// running is a running writer.
type running struct {
	*Writer
	stop func() // stops it and waits for its end
	log  func() string
}

type setting struct {
	features compile.Features
	admin    bool // all kinds, not only NetworkPolicies
	prefix   string
	identity string
	noEvents bool
	noSinks  bool
	audit    bool                   // namespaces and policies may be annotated
	inForce  func() *inforce.Answer // what the one agent answers
	pods     kubernetes.Interface   // where pods with a readiness gate are, nil for none; needs inForce
}

// allKinds returns the kinds, NetworkPolicies first, without sinks.
func allKinds(features compile.Features) []Kind {
	var kinds []Kind
	for _, k := range compile.Kinds {
		diagnose := func(o compile.Object) []policy.Finding { return k.Diagnose(o, features) }
		kind := NewKind(k.Name, k.Resources(), k.New, diagnose)
		kind.Adds = k.Adds(features)
		kinds = append(kinds, kind)
	}
	return kinds
}

var networkPolicies = compile.KindNetworkPolicy.Resource

// newWriter returns a writer for s that is not started, and its logger.
func newWriter(t *testing.T, s *statustest.Server, set setting) (*Writer, klog.Logger) {
	t.Helper()
	client := func(version schema.GroupVersion) rest.Interface {
		c, err := apiclient.New(s.Config(), nil, version)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	discovery := client(corev1.SchemeGroupVersion)
	dyn, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	if set.features == (compile.Features{}) {
		set.features = withoutEndPort
	}
	kinds := allKinds(set.features)
	if !set.admin {
		kinds = kinds[:1]
	}
	for i := range kinds {
		k := &kinds[i]
		if set.noSinks {
			break
		}
		k.Sinks = []Sink{NewSubresourceSink(dyn, discovery, k.Resources[0].GroupResource(), set.prefix)}
		if k.Resources[0] == networkPolicies {
			k.Sinks = append(k.Sinks, NewAnnotationSink(dyn, networkPolicies.GroupResource(), set.prefix))
		}
	}
	cfg := Config{
		Discovery: discovery, Events: client(eventsv1.SchemeGroupVersion), Leases: client(coordinationv1.SchemeGroupVersion), Dynamic: dyn, Kinds: kinds,
		LeaseNamespace: "kube-system", Identity: "writer-" + set.identity, Registerer: prometheus.NewRegistry(),
		withoutEvents: set.noEvents,
	}
	if set.audit {
		cfg.Annotations, cfg.Audited, cfg.Accepted = compile.StripAnnotations, compile.Audits, compile.ReportsAccepted
	}
	if set.inForce != nil {
		cfg.Enforced, cfg.Reports = enforcedCollector(t, set.inForce), compile.ReportsEnforced
	}
	if set.pods != nil {
		cfg.Readiness = readinessGate(t, set.pods, cfg.Enforced)
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w, ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
}

// start runs a writer until it is stopped or the test ends.
func start(t *testing.T, s *statustest.Server, set setting) *running {
	t.Helper()
	w, logger := newWriter(t, s, set)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	var done sync.WaitGroup
	done.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	r := &running{Writer: w, stop: func() { cancel(); done.Wait() }}
	r.log = func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
	t.Cleanup(r.stop)
	return r
}

// forEachStatus runs a test with servers of each status.
func forEachStatus(t *testing.T, statuses []statustest.Status, test func(*testing.T, statustest.Status)) {
	names := map[statustest.Status]string{statustest.Unserved: "unserved", statustest.Dropped: "dropped", statustest.Stored: "stored"}
	for _, status := range statuses {
		t.Run(names[status], func(t *testing.T) { test(t, status) })
	}
}

// settle advances the time of the bubble and waits until all goroutines are idle.
func settle(d time.Duration) {
	time.Sleep(d) // in a bubble this takes no real time
	synctest.Wait()
}

// annotated returns the conditions in the annotation of a policy.
func annotated(s *statustest.Server, name string) []metav1.Condition {
	return ordered((&annotation{}).Read(s.Policy("x", name)))
}

// inStatus returns our conditions in the status of a policy.
func inStatus(s *statustest.Server, name string) []metav1.Condition {
	return ordered((&subresource{}).Read(s.Policy("x", name)))
}

// ordered sorts conditions into the order of Conditions.
func ordered(conditions []metav1.Condition) []metav1.Condition {
	order := []string{Accepted, PartialFailure, Failure}
	slices.SortFunc(conditions, func(a, b metav1.Condition) int {
		return cmp.Compare(slices.Index(order, a.Type), slices.Index(order, b.Type))
	})
	return conditions
}

// brief formats conditions as "Accepted PartialFailure/InvalidPort @2": those that
// are true with their reasons, and the generation.
func brief(conditions []metav1.Condition) string {
	if len(conditions) == 0 {
		return "none"
	}
	var parts []string
	for _, c := range conditions {
		switch {
		case c.Status != metav1.ConditionTrue:
		case c.Reason == PolicyAccepted:
			parts = append(parts, c.Type)
		default:
			parts = append(parts, c.Type+"/"+c.Reason)
		}
	}
	return fmt.Sprintf("%s @%d", strings.Join(parts, " "), conditions[0].ObservedGeneration)
}

func wantBrief(t *testing.T, got []metav1.Condition, want string) {
	t.Helper()
	if brief(got) != want {
		t.Errorf("conditions are %q, want %q", brief(got), want)
	}
	if len(got) != 3 && len(got) != len(withoutNoFailure(got)) {
		t.Errorf("%d conditions, want all three, or those that an annotation has: %v", len(got), got)
	}
}

func (r *running) wantWrites(t *testing.T, sink string, result result, want float64) {
	t.Helper()
	if got := testutil.ToFloat64(r.metrics.writes.WithLabelValues("NetworkPolicy", sink, string(result))); got != want {
		t.Errorf("%v writes to the %s with result %s, want %v", got, sink, result, want)
	}
}

// setSpec gives a policy another spec.
func setSpec(t *testing.T, s *statustest.Server, name, spec string) {
	t.Helper()
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatal(err)
	}
	s.Update("x", name, func(u *unstructured.Unstructured) { u.Object["spec"] = fields })
}

func isPatch(r statustest.Request) bool { return r.Verb == "patch" }
