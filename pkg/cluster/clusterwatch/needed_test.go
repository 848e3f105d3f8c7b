package clusterwatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// podServer serves pods with selectors as an API server does: a watch by labels reports a pod
// as deleted, in its old state, when its labels change.
type podServer struct {
	mu      sync.Mutex
	version int
	pods    map[[2]string]*corev1.Pod
	history []podChange
	changed chan struct{}              // closed at every change
	late    map[PodQuery]chan struct{} // lists and events that wait until it is closed
	refused map[PodQuery]error
	lists   []PodQuery
	open    map[PodQuery]int // watches
}

type podChange struct {
	version  int
	old, now *corev1.Pod // nil for none
}

func newPodServer() *podServer {
	return &podServer{
		version: 100, pods: map[[2]string]*corev1.Pod{}, changed: make(chan struct{}),
		late: map[PodQuery]chan struct{}{}, refused: map[PodQuery]error{}, open: map[PodQuery]int{},
	}
}

// set adds or replaces a pod.
func (s *podServer) set(pod *corev1.Pod) { s.change(pod.Namespace, pod.Name, pod) }

// remove removes a pod.
func (s *podServer) remove(namespace, name string) { s.change(namespace, name, nil) }

func (s *podServer) change(namespace, name string, now *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]string{namespace, name}
	old := s.pods[key]
	s.version++
	delete(s.pods, key)
	if now != nil {
		now = now.DeepCopy()
		now.ResourceVersion = strconv.Itoa(s.version)
		s.pods[key] = now
	}
	s.history = append(s.history, podChange{s.version, old, now})
	close(s.changed)
	s.changed = make(chan struct{})
}

// delay holds back the lists and events of a query until release is called.
func (s *podServer) delay(q PodQuery) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := make(chan struct{})
	s.late[q] = late
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.late, q)
		close(late)
	}
}

// refuse answers lists and watches of a query with an error, or normally if it is nil.
func (s *podServer) refuse(q PodQuery, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[q] = err
}

func (s *podServer) wait(ctx context.Context, q PodQuery) error {
	s.mu.Lock()
	late, err := s.late[q], s.refused[q]
	s.mu.Unlock()
	if late != nil {
		select {
		case <-late:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// selects reports whether a query selects the pod, which may be nil.
func (q PodQuery) selects(pod *corev1.Pod) bool {
	if pod == nil || q.Node != "" && q.Node != pod.Spec.NodeName || q.Namespace != "" && q.Namespace != pod.Namespace {
		return false
	}
	selector, err := labels.Parse(q.Labels)
	if err != nil {
		panic(err)
	}
	return selector.Matches(labels.Set(pod.Labels))
}

// podLister lists before it watches.
type podLister struct{ *cache.ListWatch }

func (podLister) IsWatchListSemanticsUnSupported() bool { return true }

func (s *podServer) source(q PodQuery) cache.ListerWatcher {
	return podLister{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			if err := s.wait(ctx, q); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists = append(s.lists, q)
			list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
			for _, pod := range s.pods {
				if q.selects(pod) {
					list.Items = append(list.Items, *pod)
				}
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			from, err := strconv.Atoi(o.ResourceVersion)
			if err != nil {
				return nil, err
			}
			if err := s.wait(ctx, q); err != nil {
				return nil, err
			}
			ctx, cancel := context.WithCancel(ctx)
			w := &podEvents{make(chan watch.Event), cancel}
			go s.follow(ctx, q, from, w)
			return w, nil
		},
	}}
}

type podEvents struct {
	events chan watch.Event
	cancel context.CancelFunc
}

func (w *podEvents) Stop()                          { w.cancel() }
func (w *podEvents) ResultChan() <-chan watch.Event { return w.events }

// follow sends the events after a version until ctx ends.
func (s *podServer) follow(ctx context.Context, q PodQuery, from int, w *podEvents) {
	defer close(w.events)
	s.count(q, 1)
	defer s.count(q, -1)
	for {
		s.mu.Lock()
		at, _ := slices.BinarySearchFunc(s.history, from+1, func(c podChange, v int) int { return c.version - v })
		changes, changed := s.history[at:], s.changed
		s.mu.Unlock()
		for _, c := range changes {
			from = c.version
			if s.wait(ctx, q) != nil {
				return
			}
			var e watch.Event
			switch was, is := q.selects(c.old), q.selects(c.now); {
			case is && was:
				e = watch.Event{Type: watch.Modified, Object: c.now}
			case is:
				e = watch.Event{Type: watch.Added, Object: c.now}
			case was:
				gone := c.old.DeepCopy()
				gone.ResourceVersion = strconv.Itoa(c.version)
				e = watch.Event{Type: watch.Deleted, Object: gone}
			default:
				continue
			}
			select {
			case w.events <- e:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (s *podServer) count(q PodQuery, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[q] += n
}

func (s *podServer) isWatched(q PodQuery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[q] > 0
}

// watches returns what is being watched, in order.
func (s *podServer) watches() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for q, n := range s.open {
		for range n {
			all = append(all, q.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// node here is "n", as of a harness.
func podOn(node, namespace, name, ip, app string) *corev1.Pod {
	p := pod(name, ip)
	p.Namespace, p.Spec.NodeName, p.Labels = namespace, node, map[string]string{"app": app}
	return p
}

// from is a policy of the namespace x that lets in pods of namespaces and with labels; a nil
// namespace is x itself.
func from(name string, namespaces map[string]string, app ...string) *networkingv1.NetworkPolicy {
	p := denyAll(name)
	peer := networkingv1.NetworkPolicyPeer{}
	if namespaces != nil {
		peer.NamespaceSelector = &metav1.LabelSelector{MatchLabels: namespaces}
	}
	peer.PodSelector = &metav1.LabelSelector{}
	if len(app) > 0 {
		peer.PodSelector.MatchLabels = map[string]string{"app": app[0]}
	}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}
	return p
}

func named(name string) map[string]string {
	return map[string]string{corev1.LabelMetadataName: name}
}

func labelled(name string) *corev1.Namespace {
	ns := namespace(name)
	ns.Labels = named(name)
	return ns
}

// needer runs a Cache that watches needed pods, in a bubble.
type needer struct {
	*Cache
	mu     sync.Mutex
	last   *policy.Snapshot
	cancel context.CancelFunc
	done   chan error
}

func startNeeded(t *testing.T, source Source, cfg Config) *needer {
	t.Helper()
	n := &needer{done: make(chan error, 1)}
	features := compile.AllFeatures()
	features.CIDRGroups = cfg.Features.CIDRGroups
	cfg.NodeName, cfg.Features, cfg.Registerer, cfg.Jitter = "n", features, prometheus.NewRegistry(), spread()
	var err error
	n.Cache, err = New(source, cfg, func(_ context.Context, s *policy.Snapshot, _ time.Time, _ bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.last = s
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	n.cancel = cancel
	go func() { n.done <- n.Run(ctx) }()
	return n
}

func (n *needer) stop(t *testing.T) {
	t.Helper()
	n.cancel()
	if err := <-n.done; err != nil {
		t.Error(err)
	}
}

// decides returns the result for a packet: "allow", "deny", or "wait".
func (n *needer) decides(src, dst string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == nil {
		return "no snapshot"
	}
	return decide(n.last, src, dst)
}

func decide(s *policy.Snapshot, src, dst string) string {
	d := s.Evaluate(policy.Query{Packet: packet.Packet{Proto: packet.TCP,
		Src: netip.AddrPortFrom(netip.MustParseAddr(src), 1), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), 80)}})
	switch {
	case d.Reason == policy.UnknownPod:
		return "wait"
	case d.Allowed():
		return "allow"
	}
	return "deny"
}

// want checks the results for packets to the local pod 10.0.0.1 from these addresses.
func (n *needer) want(t *testing.T, when string, want map[string]string) {
	t.Helper()
	synctest.Wait()
	for src, verdict := range want {
		if got := n.decides(src, "10.0.0.1"); got != verdict {
			t.Errorf("%s: a packet from %s: %s, want %s", when, src, got, verdict)
		}
	}
}

func (s *podServer) wantWatches(t *testing.T, when, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.watches(); got != want {
		t.Errorf("%s: watches of %s, want %s", when, got, want)
	}
}

// neededCluster has the local pod x/web, and the pods y/a, y/b and z/a of another node.
func neededCluster(t *testing.T) (*cluster, *podServer) {
	c := newCluster(t, labelled("x"), labelled("y"), labelled("z"), node("n"))
	s := newPodServer()
	s.set(podOn("n", "x", "web", "10.0.0.1", "web"))
	s.set(podOn("other", "y", "a", "10.0.1.1", "a"))
	s.set(podOn("other", "y", "b", "10.0.1.2", "b"))
	s.set(podOn("other", "z", "a", "10.0.2.1", "a"))
	return c, s
}

var ofNamespaceY = PodQuery{PodSet: clusterstate.PodSet{Namespace: "y"}}

func withLabels(selector string) PodQuery {
	return PodQuery{PodSet: clusterstate.PodSet{Labels: selector}}
}

func TestNeededPodsAreKnownBeforeThePolicyThatNeedsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		n := startNeeded(t, c.source(), Config{NeededPods: s.source})
		defer n.stop(t)
		s.wantWatches(t, "without policies", `pods of node "n"`)
		n.want(t, "without policies", map[string]string{"10.0.1.1": "allow", "10.0.2.1": "allow"})
		release := s.delay(ofNamespaceY)
		p := from("p", named("y"))
		c.create(p)
		n.want(t, "before the list", map[string]string{"10.0.1.1": "wait", "10.0.2.1": "wait"})
		release()
		n.want(t, "after the list", map[string]string{"10.0.1.1": "allow", "10.0.1.2": "allow", "10.0.2.1": "deny"})
		s.wantWatches(t, "with a policy", `pods of namespace "y"; pods of node "n"`)
		s.set(podOn("other", "y", "c", "10.0.1.3", "c"))
		n.want(t, "after a change", map[string]string{"10.0.1.3": "allow"})
		s.remove("y", "c")
		n.want(t, "after a pod has gone", map[string]string{"10.0.1.3": "deny"})

		c.delete(p)
		c.create(denyAll("p"))
		time.Sleep(giveUpAfter - time.Second)
		s.wantWatches(t, "soon after the policy", `pods of namespace "y"; pods of node "n"`)
		n.want(t, "another policy", map[string]string{"10.0.1.1": "deny"})
		time.Sleep(2 * time.Second)
		s.wantWatches(t, "long after the policy", `pods of node "n"`)
		if got := n.len(compile.KindPod); got != 1 {
			t.Errorf("%d pods are known, want that of the node", got)
		}
	})
}

// TestNeededPodsAreOfFewWatches: beyond MaxNeededWatches, watches become wider.
func TestNeededPodsAreOfFewWatches(t *testing.T) {
	for limit, want := range map[int]string{
		3: `pods of labels "app=a"; pods of namespace "y", labels "app=b"; pods of namespace "z"; pods of node "n"`,
		1: `all pods; pods of node "n"`,
	} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := neededCluster(t)
				c.create(from("p", map[string]string{}, "a"))
				c.create(from("q", named("y"), "b"))
				c.create(from("r", named("z")))
				n := startNeeded(t, c.source(), Config{NeededPods: s.source, MaxNeededWatches: limit})
				defer n.stop(t)
				s.wantWatches(t, "three sets", want)
				n.want(t, "all of them", map[string]string{"10.0.1.1": "allow", "10.0.1.2": "allow", "10.0.2.1": "allow", "192.0.2.1": "deny"})
			})
		})
	}
}

func TestNeededPodsWhoseLabelsChangeWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		c.create(from("p", map[string]string{}, "a"))
		q := from("q", map[string]string{})
		q.Spec.Ingress[0].From[0].PodSelector.MatchLabels = map[string]string{"tier": "b"}
		c.create(q)
		n := startNeeded(t, c.source(), Config{NeededPods: s.source})
		defer n.stop(t)
		s.wantWatches(t, "two selectors", `pods of labels "app=a"; pods of labels "tier=b"; pods of node "n"`)
		n.want(t, "at first", map[string]string{"10.0.1.1": "allow", "10.0.1.2": "deny", "10.0.2.1": "allow"})
		relabel := func(namespace, ip, key, value string) {
			p := podOn("other", namespace, "a", ip, "")
			p.Labels = map[string]string{key: value}
			s.set(p)
		}
		release := s.delay(withLabels("tier=b"))
		relabel("y", "10.0.1.1", "tier", "b")
		n.want(t, "between the events", map[string]string{"10.0.1.1": "wait", "10.0.2.1": "allow"})
		release()
		n.want(t, "after both", map[string]string{"10.0.1.1": "allow"})
		time.Sleep(time.Minute)
		n.want(t, "long after", map[string]string{"10.0.1.1": "allow"})
		relabel("y", "10.0.1.1", "app", "c")
		n.want(t, "other labels", map[string]string{"10.0.1.1": "wait"})
		time.Sleep(doubtFor)
		n.want(t, "labels that no rule names", map[string]string{"10.0.1.1": "deny"})

		s.refuse(withLabels("tier=b"), apierrors.NewServiceUnavailable("away"))
		relabel("z", "10.0.2.1", "tier", "b")
		time.Sleep(10 * doubtFor)
		n.want(t, "a watch that would have it is away", map[string]string{"10.0.2.1": "wait"})
		s.refuse(withLabels("tier=b"), nil)
		time.Sleep(time.Minute)
		n.want(t, "the watch is back", map[string]string{"10.0.2.1": "allow"})
	})
}

func TestNeededPodsOfSeveralWatches(t *testing.T) {
	c, s := neededCluster(t)
	cache, err := New(c.source(), Config{NodeName: "n", Features: compile.AllFeatures(), NeededPods: s.source, Registerer: prometheus.NewRegistry()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, v := cache.needed, cache.view
	all, some := p.newWatch(ofNamespaceY, 2), p.newWatch(withLabels("app=a"), 4)
	at := func(version, ip string) *stripped {
		return &stripped{namespace: "y", name: "a", version: version, object: compile.NewPod(podOn("other", "y", "a", ip, "a"))}
	}
	for _, step := range []struct {
		name string
		do   func() bool
		want bool
		has  int
	}{
		{"one has it", func() bool { return p.set(v, some, at("10", "10.0.1.1")) }, true, 1},
		{"the other has it newer", func() bool { return p.set(v, all, at("12", "10.0.1.2")) }, true, 1},
		{"an older version comes late", func() bool { return p.set(v, some, at("11", "10.0.1.3")) }, false, 1},
		{"its labels change", func() bool { return p.delete(v, some, at("13", "")) }, false, 1},
		{"again", func() bool { return p.delete(v, some, at("13", "")) }, false, 1},
		{"they change back", func() bool { return p.set(v, some, at("14", "10.0.1.2")) }, false, 1},
		{"an earlier pod of its name goes", func() bool { return p.delete(v, all, at("13", "")) }, false, 1},
		{"it is there again", func() bool { return p.set(v, all, at("15", "10.0.1.2")) }, false, 1},
		{"it goes", func() bool { return p.delete(v, all, at("16", "")) }, true, 0},
		{"the other reports it late", func() bool { return p.delete(v, some, at("16", "")) }, false, 0},
	} {
		if got := step.do(); got != step.want || v.Len(compile.KindPod) != step.has {
			t.Errorf("%s: changed %v with %d pods, want %v with %d", step.name, got, v.Len(compile.KindPod), step.want, step.has)
		}
	}
}

// TestDoubtsAboutPods: the labels of a pod have changed, so that other watches may select it.
func TestDoubtsAboutPods(t *testing.T) {
	for _, tc := range []struct {
		name  string
		other PodQuery
		// what happens to the other watch a moment before the doubt would end
		then func(c *Cache, w *podWatch)
		want int // pods that are known then
	}{
		{"another watch is under way", withLabels("tier=b"), func(*Cache, *podWatch) {}, 0},
		{"it has ended", withLabels("tier=b"), func(c *Cache, w *podWatch) { c.currency.set(w.mirror, false) }, 1},
		{"it has begun again, and its events have not come yet", withLabels("tier=b"), func(c *Cache, w *podWatch) {
			c.currency.set(w.mirror, false)
			c.currency.set(w.mirror, true)
		}, 1},
		{"it has not listed, so that packets wait in any case", withLabels("tier=b"), func(c *Cache, w *podWatch) {
			c.currency.set(w.mirror, false)
			w.listed = false
		}, 0},
		{"it is of another namespace", PodQuery{PodSet: clusterstate.PodSet{Namespace: "z"}}, func(c *Cache, w *podWatch) { c.currency.set(w.mirror, false) }, 0},
		{"it has the pod, and then no more", withLabels("tier=b"), func(c *Cache, w *podWatch) {
			c.needed.set(c.view, w, &stripped{namespace: "y", name: "a", version: "12", object: compile.NewPod(podOn("other", "y", "a", "10.0.1.1", "a"))})
			c.needed.delete(c.view, w, &stripped{namespace: "y", name: "a", version: "13"})
		}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := neededCluster(t)
				cache, err := New(c.source(), Config{NodeName: "n", NeededPods: s.source, Registerer: prometheus.NewRegistry()}, nil)
				if err != nil {
					t.Fatal(err)
				}
				p, v := cache.needed, cache.view
				first, other := p.newWatch(withLabels("app=a"), 2), p.newWatch(tc.other, 4)
				for _, w := range []*podWatch{first, other} {
					p.watches[w.PodSet], w.listed = w, true
					cache.currency.add(w.mirror)
					cache.currency.set(w.mirror, true)
				}
				pod := &stripped{namespace: "y", name: "a", version: "10", object: compile.NewPod(podOn("other", "y", "a", "10.0.1.1", "a"))}
				p.set(v, first, pod)
				time.Sleep(time.Minute)
				p.delete(v, first, &stripped{namespace: "y", name: "a", version: "11"})
				time.Sleep(doubtFor - time.Millisecond)
				tc.then(cache, other)
				time.Sleep(time.Millisecond)
				p.settle(v, time.Now())
				if got := v.Len(compile.KindPod); got != tc.want {
					t.Errorf("%d pods are known, want %d", got, tc.want)
				}
				cache.currency.set(other.mirror, true)
				time.Sleep(2 * doubtFor)
				p.settle(v, time.Now())
				if got := v.Len(compile.KindPod); got != 0 {
					t.Errorf("%d pods are known long after, want none", got)
				}
			})
		})
	}
}

// TestRequestsThatOutlastTheirReflector: a stopped watch has no pods.
func TestRequestsThatOutlastTheirReflector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCurrency()
		kept, given := new(mirror), new(mirror)
		for _, m := range []*mirror{kept, given} {
			c.add(m)
			c.set(m, true)
		}
		c.forget(given)
		c.set(given, true)
		c.set(given, false)
		time.Sleep(time.Minute)
		if got := c.age(); got != 0 {
			t.Errorf("known to be current %v s ago, want now", got)
		}
	})
}

func TestNeededPodsThatCannotBeListedAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		c.create(from("p", named("y")))
		web2 := podOn("n", "x", "web2", "10.0.0.2", "web")
		s.set(web2)
		other := from("q", map[string]string{}, "a")
		other.Namespace = "z"
		c.create(other)
		local := podOn("n", "z", "web", "10.0.0.3", "web")
		s.set(local)
		s.refuse(ofNamespaceY, apierrors.NewBadRequest("unable to parse"))
		n := startNeeded(t, c.source(), Config{NeededPods: s.source})
		defer n.stop(t)
		time.Sleep(neededPatience + time.Second)
		n.want(t, "a refused list", map[string]string{"10.0.1.1": "allow", "10.0.1.2": "wait"})
		for src, want := range map[string]string{"10.0.1.1": "allow", "10.0.1.2": "deny"} {
			if got := n.decides(src, "10.0.0.3"); got != want {
				t.Errorf("a packet from %s that another policy decides about: %s, want %s", src, got, want)
			}
		}
		if err := n.Healthy(); err == nil || !strings.Contains(err.Error(), `namespace "y": unable to parse`) || strings.Contains(err.Error(), "app") {
			t.Errorf("health: %v, want namespace y and no other", err)
		}
		s.refuse(ofNamespaceY, nil)
		time.Sleep(time.Minute)
		n.want(t, "a list at last", map[string]string{"10.0.1.2": "allow", "10.0.2.1": "deny"})
		if err := n.Healthy(); err != nil {
			t.Error(err)
		}
	})
}

// TestNeededPodsOfANamespaceThatVanishes: while its pods are being listed.
func TestNeededPodsOfANamespaceThatVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		c.create(from("p", named("y")))
		release := s.delay(ofNamespaceY)
		n := startNeeded(t, c.source(), Config{NeededPods: s.source})
		defer n.stop(t)
		time.Sleep(neededPatience + time.Second)
		n.want(t, "before the list", map[string]string{"10.0.1.1": "wait"})
		c.delete(labelled("y"))
		n.want(t, "without the namespace", map[string]string{"10.0.1.1": "deny", "10.0.2.1": "deny"})
		if err := n.Healthy(); err != nil {
			t.Error(err)
		}
		s.remove("y", "a")
		s.remove("y", "b")
		release()
		time.Sleep(giveUpAfter + time.Second)
		s.wantWatches(t, "long after", `pods of node "n"`)
		c.create(labelled("y"))
		s.set(podOn("other", "y", "a", "10.0.1.1", "a"))
		n.want(t, "a namespace of that name", map[string]string{"10.0.1.1": "allow", "10.0.2.1": "deny"})
	})
}

// TestNeededPodsOfABackup: versions begin again when the server's data was restored.
func TestNeededPodsOfABackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		cache, err := New(c.source(), Config{NodeName: "n", NeededPods: s.source, Registerer: prometheus.NewRegistry()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := cache.needed.newWatch(ofNamespaceY, 2)
		list := func(version, ip string) error {
			p := podOn("other", "y", "a", ip, "a")
			p.ResourceVersion = version
			return w.mirror.Replace([]any{p}, version)
		}
		if err := list("1000", "10.0.1.1"); err != nil {
			t.Fatal(err)
		}
		if err := list("50", "10.0.1.9"); err == nil {
			t.Error("an older list is believed at once")
		}
		time.Sleep(believeAfter)
		if err := list("50", "10.0.1.9"); err != nil {
			t.Error(err)
		}
		if cache.view.Snapshot().Endpoint(netip.MustParseAddr("10.0.1.9")) == nil {
			t.Error("the pod has not got its address of the backup")
		}
	})
}

// TestNeededPodsThatAreNeededAgain: their watch continues.
func TestNeededPodsThatAreNeededAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		n := startNeeded(t, c.source(), Config{NeededPods: s.source})
		defer n.stop(t)
		p := from("p", named("y"))
		c.create(p)
		time.Sleep(time.Second)
		c.delete(p)
		time.Sleep(giveUpAfter - time.Second)
		c.create(p)
		time.Sleep(2 * giveUpAfter)
		n.want(t, "long after", map[string]string{"10.0.1.1": "allow", "10.0.2.1": "deny"})
		c.delete(p)
		time.Sleep(giveUpAfter - time.Second)
		s.wantWatches(t, "not needed again", `pods of namespace "y"; pods of node "n"`)
		s.mu.Lock()
		defer s.mu.Unlock()
		if want := []PodQuery{{Node: "n"}, ofNamespaceY}; !slices.Equal(s.lists, want) {
			t.Errorf("lists of %v, want %v", s.lists, want)
		}
	})
}

// TestMostNeededWatches: the watch that has been unneeded for longest makes room.
func TestMostNeededWatches(t *testing.T) {
	c, s := neededCluster(t)
	cache, err := New(c.source(), Config{NodeName: "n", NeededPods: s.source, Registerer: prometheus.NewRegistry()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := cache.needed
	var ended []string
	for i := range MostNeededWatches {
		w := p.newWatch(PodQuery{PodSet: clusterstate.PodSet{Namespace: fmt.Sprint(i)}}, 2<<i)
		w.stop = func() { ended = append(ended, w.Namespace) }
		if i > 9 && i < 20 {
			w.unneeded = time.Unix(int64(100-i), 0)
		}
		p.watches[w.PodSet] = w
	}
	p.start(t.Context(), nil, ofNamespaceY.PodSet)
	if want := []string{"19"}; !slices.Equal(ended, want) || p.watches[ofNamespaceY.PodSet] != nil {
		t.Errorf("the watches of namespaces %v end, want %v", ended, want)
	}
}

// TestNeededPodsThatAreNotListedAreNotSaved: the policy that needs them is not saved either,
// because it would deny them after a restart.
func TestNeededPodsThatAreNotListedAreNotSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		saved := savedIn(filepath.Join(t.TempDir(), "state"), "b", nil)
		n := startNeeded(t, c.source(), Config{NeededPods: s.source, Saved: saved})
		time.Sleep(2 * saveDelay)
		defer s.delay(ofNamespaceY)()
		c.create(from("p", named("y")))
		time.Sleep(2 * saveDelay)
		n.want(t, "before the list", map[string]string{"10.0.1.1": "wait"})
		n.stop(t)

		defer s.delay(PodQuery{Node: "n"})()
		n = startNeeded(t, c.source(), Config{NeededPods: s.source, Saved: saved})
		defer n.stop(t)
		time.Sleep(time.Second)
		n.want(t, "from the saved state", map[string]string{"10.0.1.1": "allow"})
	})
}

func TestNeededPodsOfTheSavedState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := neededCluster(t)
		c.create(from("p", named("y")))
		saved := savedIn(filepath.Join(t.TempDir(), "state"), "b", nil)
		n := startNeeded(t, c.source(), Config{NeededPods: s.source, Saved: saved})
		n.want(t, "before", map[string]string{"10.0.1.1": "allow", "10.0.2.1": "deny"})
		n.stop(t)

		release := s.delay(PodQuery{Node: "n"})
		releaseY := s.delay(ofNamespaceY)
		s.remove("y", "b")
		n = startNeeded(t, c.source(), Config{NeededPods: s.source, Saved: saved})
		defer n.stop(t)
		time.Sleep(time.Second)
		n.want(t, "from the saved state", map[string]string{"10.0.1.1": "allow", "10.0.1.2": "allow", "10.0.2.1": "deny"})
		release()
		time.Sleep(time.Second)
		n.want(t, "before the pods that are needed", map[string]string{"10.0.1.1": "allow", "10.0.2.1": "deny"})
		time.Sleep(neededPatience)
		n.want(t, "without the pods that are needed", map[string]string{"10.0.1.1": "wait", "10.0.1.2": "wait", "10.0.2.1": "wait"})
		releaseY()
		n.want(t, "at last", map[string]string{"10.0.1.1": "allow", "10.0.1.2": "deny", "10.0.2.1": "deny"})
	})
}

// TestNeededPodsDecideAsAllPods: after any changes, a node that watches needed pods never
// decides differently from one that watches all. Packets may wait shortly after a change, and
// until lists are complete.
func TestNeededPodsDecideAsAllPods(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { compareNeeded(t, rand.New(rand.NewPCG(seed, 18))) })
		})
	}
}

func compareNeeded(t *testing.T, r *rand.Rand) {
	c, s := neededCluster(t)
	all := startNeeded(t, c.source(), Config{NeededPods: func(PodQuery) cache.ListerWatcher { return s.source(PodQuery{}) }})
	defer all.stop(t)
	needed := startNeeded(t, c.source(), Config{NeededPods: s.source})
	defer needed.stop(t)
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	policies := map[string]*networkingv1.NetworkPolicy{}
	addrs := []string{"10.0.0.1", "10.0.0.2", "192.0.2.1"}
	for i := range 6 {
		addrs = append(addrs, fmt.Sprintf("10.0.9.%d", i))
	}
	step := func() {
		switch r.IntN(8) {
		case 0, 1, 2: // a pod, which keeps its address as long as it is there
			i := r.IntN(6)
			p := podOn(pick("other", "other", "n"), pick("x", "y", "z"), fmt.Sprint("p", i), fmt.Sprintf("10.0.9.%d", i), pick("a", "b", "c"))
			p.UID = types.UID(p.Name)
			for key, old := range s.pods {
				if key[1] == p.Name {
					p.Namespace, p.Spec.NodeName = old.Namespace, old.Spec.NodeName
				}
			}
			s.set(p)
		case 3: // a pod goes
			for key := range s.pods {
				if strings.HasPrefix(key[1], "p") && key[1] == fmt.Sprint("p", r.IntN(6)) {
					s.remove(key[0], key[1])
					break
				}
			}
		case 4, 5: // a policy
			name := pick("p", "q", "r")
			if old := policies[name]; old != nil {
				c.delete(old)
				delete(policies, name)
				break
			}
			var namespaces map[string]string
			switch r.IntN(4) {
			case 0:
				namespaces = map[string]string{}
			case 1:
				namespaces = map[string]string{"team": pick("1", "2")}
			case 2:
				namespaces = named(pick("x", "y", "z"))
			}
			p := from(name, namespaces)
			if r.IntN(2) == 0 {
				p = from(name, namespaces, pick("a", "b", "c"))
			}
			c.create(p)
			policies[name] = p
		case 6: // a namespace has other labels
			ns := labelled(pick("x", "y", "z"))
			ns.Labels["team"] = pick("1", "2")
			update(c, ns, func(*corev1.Namespace) {})
		case 7: // time passes
			time.Sleep(time.Duration(r.IntN(400)) * time.Second)
		}
	}
	for range 60 {
		var late []func()
		for _, q := range []PodQuery{ofNamespaceY, withLabels("app=a"), withLabels("app=b"), {PodSet: clusterstate.PodSet{Namespace: "y", Labels: "app=a"}}} {
			if r.IntN(4) == 0 && !s.isWatched(q) {
				late = append(late, s.delay(q))
			}
		}
		step()
		synctest.Wait()
		compareAgents(t, all, needed, addrs, true)
		for _, release := range late {
			release()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		compareAgents(t, all, needed, addrs, false)
		if t.Failed() {
			return
		}
	}
}

func compareAgents(t *testing.T, all, needed *needer, addrs []string, mayWait bool) {
	t.Helper()
	for _, src := range addrs {
		for _, dst := range addrs {
			want, got := all.decides(src, dst), needed.decides(src, dst)
			if got != want && !(mayWait && got == "wait") {
				t.Errorf("%s -> %s: %s, and %s if all pods are watched", src, dst, got, want)
			}
		}
	}
}

// TestNeededPodsOfAWatchThatEndsWait: a policy needs pods again while their watch is ending.
func TestNeededPodsOfAWatchThatEndsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soon = "10.0.2.9" // of a pod that is made while nothing is watched
		c, s := neededCluster(t)
		s.remove("z", "a")
		c.create(from("p", named("z")))
		n := startNeeded(t, c.source(), Config{NeededPods: s.source})
		defer n.stop(t)
		n.want(t, "at first", map[string]string{soon: "deny"})
		ofNamespaceZ := PodQuery{PodSet: clusterstate.PodSet{Namespace: "z"}}
		release := s.delay(ofNamespaceZ)
		s.set(podOn("other", "z", "soon", soon, "a"))
		n.Cache.mu.Lock()
		n.needed.watches[ofNamespaceZ.PodSet].end()
		n.Cache.mu.Unlock()
		n.want(t, "while they are listed again", map[string]string{soon: "wait"})
		release()
		n.want(t, "then", map[string]string{soon: "allow"})
	})
}
