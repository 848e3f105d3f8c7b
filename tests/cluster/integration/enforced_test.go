package integration

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/process"
)

// changesPerMinute is how often policies change.
const changesPerMinute = 100

// A generation costs two writes at most: one of what the writer finds itself, and one when it is in force
// on all nodes. A node where it is not for a minute costs one more for each policy, and another one
// afterwards. Nothing is said to be in force that is not.
//
// CI counts with few nodes. With NODES and CHANGES, and with -v, this measures the figures of
// docs/scalability.md.
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

// revision is a generation of a policy.
type revision struct {
	name       string
	generation int64
}

// said is what the writer has said about a revision.
type said struct {
	metav1.Condition
	at time.Time
}

// journal is what has happened, in its order.
type journal struct {
	everywhere func(version string) error

	mu       sync.Mutex
	kinds    map[string]inforce.Kind // newest versions
	since    map[string]time.Time
	versions map[revision]string // where a revision began
	said     map[revision][]said
	lies     []string
}

// answer is that of an agent that enforces what the journal has.
func (j *journal) answer() (answer inforce.Answer) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(j.kinds)) {
		k := j.kinds[kind]
		k.Seconds = time.Since(j.since[kind]).Seconds()
		answer.Kinds = append(answer.Kinds, k)
	}
	return answer
}

// add adds an object that has changed.
func (j *journal) add(before, now any) {
	switch now := now.(type) {
	case *corev1.Namespace:
		j.advance("Namespace", now.ResourceVersion)
	case *networkingv1.NetworkPolicy:
		j.advance("NetworkPolicy", now.ResourceVersion)
		old, _ := before.(*networkingv1.NetworkPolicy)
		j.read(old, now)
	}
}

func (j *journal) advance(kind, version string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !inforce.Reaches(j.kinds[kind].Version, version) {
		j.kinds[kind], j.since[kind] = inforce.Kind{Kind: kind, Version: version, Seen: version}, time.Now()
	}
}

// read compares what the writer says with what is so.
func (j *journal) read(old, now *networkingv1.NetworkPolicy) {
	current := revision{now.Name, now.Generation}
	j.mu.Lock()
	if j.versions[current] == "" {
		j.versions[current] = now.ResourceVersion
	}
	c := enforcedIn(now)
	if c == nil || old != nil && old.UID == now.UID && old.Annotations[status.Annotation] != "" && *enforcedIn(old) == *c {
		j.mu.Unlock()
		return
	}
	about := revision{now.Name, c.ObservedGeneration}
	j.said[about] = append(j.said[about], said{*c, time.Now()})
	version := j.versions[about]
	j.mu.Unlock()
	if c.Status != metav1.ConditionTrue {
		return
	}
	if err := j.everywhere(version); err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.lies = append(j.lies, fmt.Sprintf("%v: %q: %v", about, c.Message, err))
	}
}

// enforcedIn returns the condition of a policy, nil if there is none.
func enforcedIn(p *networkingv1.NetworkPolicy) *metav1.Condition {
	var conditions []metav1.Condition
	_ = json.Unmarshal([]byte(p.Annotations[status.Annotation]), &conditions)
	if i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == status.Enforced }); i >= 0 {
		return &conditions[i]
	}
	return nil
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

// latencies are the times from changes until their conditions were true. A change that was followed by
// another one before has none.
func (f *enforcedFleet) latencies() (all durations) {
	f.journal.mu.Lock()
	defer f.journal.mu.Unlock()
	for r, began := range f.started {
		if s := f.journal.said[r]; len(s) > 0 {
			all = append(all, s[0].at.Sub(began))
		}
	}
	return all
}

// noOps updates the status of a pod without changing it, which is what the API server and this machine
// need for any write at least.
func (f *enforcedFleet) noOps(n int) (took durations) {
	f.t.Helper()
	for range n {
		began := time.Now()
		must[*corev1.Pod](f.t)(f.client.CoreV1().Pods(namespace).UpdateStatus(f.t.Context(), f.all[0].pod, metav1.UpdateOptions{}))
		took = append(took, time.Since(began))
	}
	return took
}

// requests counts what the writer has asked the API server, by verb and resource.
func (f *enforcedFleet) requests() map[string]int {
	f.t.Helper()
	log := must[*os.File](f.t)(os.Open(f.audit))
	defer log.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			ObjectRef        struct{ Resource, Subresource string }
			ResponseStatus   struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			f.t.Fatal(err)
		}
		what := strings.TrimSuffix(event.Verb+" "+event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/")
		switch {
		case strings.Contains(event.RequestURI, "dryRun"):
			what += " (dry run)"
		case event.ResponseStatus.Code >= 300:
			what += fmt.Sprint(" (", event.ResponseStatus.Code, ")")
		}
		counts[what]++
	}
	if err := lines.Err(); err != nil {
		f.t.Fatal(err)
	}
	return counts
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

// usage is what has been used so far.
type usage struct {
	at       time.Time
	cpu      [3]time.Duration // of the writer, the API server and the agents
	requests map[string]int
}

func (f *enforcedFleet) usage(w *writer) usage {
	f.t.Helper()
	u := usage{at: time.Now(), requests: f.requests()}
	for i, pid := range []int{w.cmd.Process.Pid, f.plane.APIServerPID(), os.Getpid()} {
		u.cpu[i] = must[time.Duration](f.t)(process.CPUTime(pid))
	}
	return u
}

// report prints what has been used since it was called last.
func (f *enforcedFleet) report(what string, w *writer, before usage) {
	f.t.Helper()
	now := f.usage(w)
	questions, rounds := roundsOf(f.agents.allAsked(), before.at)
	seconds := now.at.Sub(before.at).Seconds()
	var cpu []string
	for i, of := range []string{"writer", "API server", "agents"} {
		used := now.cpu[i] - before.cpu[i]
		cpu = append(cpu, fmt.Sprintf("%s %.1f s, %.0f %% of a core", of, used.Seconds(), 100*used.Seconds()/seconds))
	}
	resident, peak, err := process.Resident(w.cmd.Process.Pid)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Logf("%s, %.0f s: CPU of %s; memory of the writer %d MB, at most %d MB", what, seconds, strings.Join(cpu, ", "), resident>>20, peak>>20)
	var requests []string
	for _, request := range slices.Sorted(maps.Keys(now.requests)) {
		if n := now.requests[request] - before.requests[request]; n > 0 {
			requests = append(requests, fmt.Sprintf("%d %s", n, request))
		}
	}
	f.t.Logf("%s: the writer requested %s, and asked agents %d times; all were asked what is in force within %s", what, strings.Join(requests, ", "), questions, rounds)
}

// roundsOf returns how many questions were asked since a time, and how long the rounds took in which all
// nodes were asked what is in force there.
func roundsOf(asked []question, since time.Time) (questions int, rounds durations) {
	type round struct{ first, last time.Time }
	var all []round
	nth := map[string]int{} // rounds by node
	for _, q := range asked {
		if q.at.After(since) {
			questions++
		}
		if q.path != inforce.Path {
			continue
		}
		n := nth[q.node]
		nth[q.node]++
		if n == len(all) {
			all = append(all, round{first: q.at})
		}
		all[n].last = q.at
	}
	for _, r := range all {
		if r.first.After(since) {
			rounds = append(rounds, r.last.Sub(r.first))
		}
	}
	return questions, rounds
}

type durations []time.Duration

func (d durations) String() string {
	if len(d) == 0 {
		return "none"
	}
	d = slices.Sorted(slices.Values(d))
	at := func(share float64) time.Duration {
		return d[int(share*float64(len(d)-1))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s, at most %s (%d)", at(0.5), at(0.99), at(1), len(d))
}
