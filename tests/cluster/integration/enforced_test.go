package integration

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
)

// changesPerMinute is how often policies change.
const changesPerMinute = 100

// A generation costs two writes at most: one of what the writer finds itself, and one when it is in force
// on all nodes. A node where it is not for a minute costs one more for each policy, and another one
// afterwards. Nothing is said to be in force that is not.
//
// CI counts with few nodes. With NODES and CHANGES, and with -v, this measures the figures of
// docs/performance/README.md.
func TestEnforcedOnManyNodes(t *testing.T) {
	nodes, changes := number(t, "NODES", 40), number(t, "CHANGES", 20)
	f := newEnforcedFleet(t, nodes, min(changes, changesPerMinute))
	quiet := f.noOps(100)
	t.Logf("%d nodes, %d policies; a status update that changes nothing takes %s", nodes, len(f.policies), quiet)

	config, _ := account(t, f.plane, namespace, statusWriter)
	w := startWriter(t, config)
	before := f.usage(w)
	f.await("at first")
	f.wantWrites("at first", len(f.policies), len(f.policies))
	f.report("until all were in force by their conditions", w, before)

	before = f.usage(w)
	noOps := f.change(changes)
	f.await("after the changes")
	took := f.latencies()
	f.wantWrites("after the changes", len(took), 2*changes)
	f.report(fmt.Sprintf("while %d changes came", changes), w, before)
	t.Logf("from a change to its condition %s; a status update that changed nothing took %s", took, noOps)

	before = f.usage(w)
	f.late()
	f.report("with a late node", w, before)
	f.wantNoOtherWrites()
}

// number returns the value of an environment variable.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	return must[int](t)(strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise))))
}

// enforcedFleet is a cluster whose agents enforce what they have seen, at once.
type enforcedFleet struct {
	*cluster
	plane    *controlplane.ControlPlane
	audit    string // what the writer has asked the API server
	agents   *fakeAgents
	all      []*fakeAgent
	policies []string
	journal  *journal
	started  map[revision]time.Time // when a change was requested
	written  int                    // writes so far
}

// auditPolicy logs the requests of the status writer.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: ["system:serviceaccount:` + namespace + `:` + statusWriter + `"]
- level: None
`

func newEnforcedFleet(t *testing.T, nodes, policies int) *enforcedFleet {
	t.Helper()
	folder := t.TempDir()
	rules, audit := filepath.Join(folder, "rules.yaml"), filepath.Join(folder, "audit.log")
	if err := os.WriteFile(rules, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	// An API server of its own: thousands of nodes would delay other tests.
	plane := must[*controlplane.ControlPlane](t)(controlplane.Start(t.Context(), controlplane.Config{
		Release: servers.Newest, Log: os.Stderr,
		Args: []string{"--audit-policy-file=" + rules, "--audit-log-path=" + audit, "--audit-log-format=json"},
	}))
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	install(t, plane)
	newKubectl(t, plane.Admin()).run("delete", "-n", namespace, "networkpolicy", statusWriter) // the test counts its own
	client := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(plane.Admin()))
	f := &enforcedFleet{
		cluster: &cluster{t: t, client: client, namespace: "shop"},
		plane:   plane, audit: audit, agents: serveFakeAgents(t, client), started: map[revision]time.Time{},
	}
	f.createNamespace(f.namespace, nil)
	f.createNodes(nodes)
	f.follow()
	for i := range policies {
		name := fmt.Sprintf("policy-%d", i)
		f.policies = append(f.policies, name)
		must[*networkingv1.NetworkPolicy](t)(client.NetworkingV1().NetworkPolicies(f.namespace).Create(t.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{compile.ReportAnnotation: compile.ReportEnforced}},
		}, metav1.CreateOptions{}))
	}
	return f
}

// createNodes writes nodes with an agent each.
func (f *enforcedFleet) createNodes(nodes int) {
	f.t.Helper()
	f.all = make([]*fakeAgent, nodes)
	group, ctx := errgroup.WithContext(f.t.Context())
	group.SetLimit(32)
	for i := range nodes {
		group.Go(func() (err error) {
			name := fmt.Sprintf("node-%05d", i)
			if _, err := f.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				return err
			}
			f.all[i], err = f.agents.start(ctx, name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// follow has the agents enforce all policies and namespaces as soon as the test sees them.
func (f *enforcedFleet) follow() {
	f.t.Helper()
	f.journal = &journal{kinds: map[string]inforce.Kind{}, since: map[string]time.Time{}, versions: map[revision]string{}, said: map[revision][]said{}}
	f.journal.everywhere = func(version string) error {
		for _, a := range f.all {
			answer := a.inForce()
			if err := answer.Check("NetworkPolicy", version); err != nil {
				return fmt.Errorf("%s: %w", a.node, err)
			}
		}
		return nil
	}
	for _, a := range f.all {
		a.say(f.journal.answer)
	}
	factory := informers.NewSharedInformerFactory(f.client, 0)
	policies, namespaces := factory.Networking().V1().NetworkPolicies().Informer(), factory.Core().V1().Namespaces().Informer()
	for _, informer := range []cache.SharedIndexInformer{policies, namespaces} {
		must[cache.ResourceEventHandlerRegistration](f.t)(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { f.journal.add(nil, o) },
			UpdateFunc: f.journal.add,
		}))
	}
	ctx, stop := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	f.t.Cleanup(func() {
		stop()
		factory.Shutdown()
	})
}

// newest returns what was said last about the newest revision of each policy.
func (f *enforcedFleet) newest() map[revision][]said {
	f.journal.mu.Lock()
	defer f.journal.mu.Unlock()
	for _, lie := range f.journal.lies {
		f.t.Errorf("it is not in force: %s", lie)
	}
	f.journal.lies = nil
	newest := map[string]revision{}
	for r := range f.journal.versions {
		if r.generation > newest[r.name].generation {
			newest[r.name] = r
		}
	}
	all := map[revision][]said{}
	for _, r := range newest {
		all[r] = slices.Clone(f.journal.said[r])
	}
	return all
}

// await waits until all policies are in force by their conditions.
func (f *enforcedFleet) await(when string) {
	f.t.Helper()
	f.awaitAll(when, func(s []said) bool { return len(s) > 0 && s[len(s)-1].Status == metav1.ConditionTrue })
}

// awaitAll waits until what is said of each policy is as wanted.
func (f *enforcedFleet) awaitAll(when string, wanted func([]said) bool) {
	f.t.Helper()
	eventuallyWithin(f.t, patience+time.Duration(len(f.all))*200*time.Millisecond, func() string {
		for r, s := range f.newest() {
			if !wanted(s) {
				return fmt.Sprintf("%s, of %v is said %v", when, r, s)
			}
		}
		return ""
	})
}

// change changes policies by turns, and returns how long status updates that change nothing took meanwhile.
func (f *enforcedFleet) change(changes int) (noOps durations) {
	f.t.Helper()
	next := time.NewTicker(time.Minute / changesPerMinute)
	defer next.Stop()
	for i := range changes {
		<-next.C
		f.changeOne(f.policies[i%len(f.policies)])
		noOps = append(noOps, f.noOps(1)...)
	}
	return noOps
}

func (f *enforcedFleet) changeOne(name string) revision {
	f.t.Helper()
	began := time.Now()
	changed := must[*networkingv1.NetworkPolicy](f.t)(f.client.NetworkingV1().NetworkPolicies(f.namespace).Patch(f.t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"podSelector":{"matchLabels":{"change":"%d"}}}}`, len(f.started)), metav1.PatchOptions{}))
	r := revision{name, changed.Generation}
	f.started[r] = began
	return r
}

// late has a node enforce nothing for more than a minute.
func (f *enforcedFleet) late() {
	f.t.Helper()
	last := f.all[len(f.all)-1]
	began := time.Now()
	last.say(func() inforce.Answer { return inforce.Answer{Problem: "the table is gone"} })
	changed := f.changeOne(f.policies[0]) // so that agents are asked soon
	f.awaitAll("with a late node", func(s []said) bool {
		return len(s) > 0 && s[len(s)-1].Status == metav1.ConditionFalse
	})
	for r, s := range f.newest() {
		c := s[len(s)-1]
		if want := last.node + ": the table is gone"; c.Reason != "Pending" || !strings.Contains(c.Message, want) {
			f.t.Errorf("%v: %+v, want that it names %s", r, c.Condition, want)
		}
		if c.at.Sub(began) < time.Minute {
			f.t.Errorf("%v is said to be late after %s", r, c.at.Sub(began))
		}
		if r == changed && len(s) > 1 {
			f.t.Errorf("of %v is also said %v", r, s)
		}
	}
	f.wantWrites("with a late node", len(f.policies)+1, len(f.policies)+1)
	last.say(f.journal.answer)
	f.await("with all nodes")
	f.wantWrites("with all nodes", len(f.policies), len(f.policies))
}

// latencies are the times from changes until their conditions were true, each said once. A change
// that was followed by another one before has none.
func (f *enforcedFleet) latencies() (all durations) {
	f.journal.mu.Lock()
	defer f.journal.mu.Unlock()
	for r, began := range f.started {
		s := f.journal.said[r]
		if len(s) > 1 || len(s) == 1 && s[0].Status != metav1.ConditionTrue {
			f.t.Errorf("of %v is said %v", r, s)
		}
		if len(s) > 0 {
			all = append(all, s[0].at.Sub(began))
		}
	}
	return all
}

// wantWrites counts the writes since it was called last.
func (f *enforcedFleet) wantWrites(when string, least, most int) {
	f.t.Helper()
	now := f.requests()["patch networkpolicies"]
	if got := now - f.written; got < least || got > most {
		f.t.Errorf("%s: %d writes, want %d to %d", when, got, least, most)
	}
	f.written = now
}

// wantNoOtherWrites expects that the writer has written nothing but conditions and its Lease.
func (f *enforcedFleet) wantNoOtherWrites() {
	f.t.Helper()
	known := []string{"patch networkpolicies", "patch networkpolicies (dry run)", "create leases", "update leases"}
	for request, n := range f.requests() {
		verb, _, _ := strings.Cut(request, " ")
		if !slices.Contains([]string{"get", "list", "watch"}, verb) && !slices.Contains(known, request) {
			f.t.Errorf("the writer requested %q %d times", request, n)
		}
	}
}
