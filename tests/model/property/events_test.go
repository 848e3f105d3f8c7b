package property

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/klog/v2"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// TestOrderOfEventsIsIrrelevant: NP-53, NP-54. After any history of updates, deletions,
// re-creations and broken watches, decisions equal those of a cluster that was created in its final
// state.
func TestOrderOfEventsIsIrrelevant(t *testing.T) {
	changes := 0
	forClusters(t, func(t *testing.T, g *gen, end oracle.Cluster) {
		end = g.audited(end)
		clusters := []oracle.Cluster{g.audited(g.cluster()), g.audited(g.cluster()), end}
		kinds := []*compile.Kind{compile.KindAdminNetworkPolicy, compile.KindBaselineAdminNetworkPolicy, compile.KindClusterNetworkPolicy}
		if g.OneIn(4) {
			kinds = []*compile.Kind{}
			for i := range clusters {
				clusters[i] = withoutAdministrators(clusters[i])
			}
			end = clusters[2]
		}
		histories := historiesOf(clusters...)
		var got *policy.Snapshot
		synctest.Test(t, func(t *testing.T) {
			got = replay(t, g, histories, clusterwatch.Config{Kinds: kinds, Features: input(end).Features})
		})
		if diff := difference(clusterstate.Compile(input(end)), got, g.questions(end)); diff != "" {
			t.Errorf("compiled at once and after events: %s\n%s", diff, describe(end))
		}
		if diff := difference(ifEnforced(clusterstate.Compile(input(end))), ifEnforced(got), g.questions(end)); diff != "" {
			t.Errorf("compiled at once and after events, if audited policies were enforced: %s\n%s", diff, describe(end))
		}
		changes += len(clusters) * len(histories)
	})
	t.Logf("at most %d events", changes)
}

// withoutAdministrators returns the watched part of a cluster without administrators' kinds: none
// of their policies, and no other node.
func withoutAdministrators(c oracle.Cluster) oracle.Cluster {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name != here })
	c.AdminNetworkPolicies, c.BaselineAdminNetworkPolicies, c.ClusterNetworkPolicies = nil, nil, nil
	return c
}

// object is an API object of any kind.
type object = compile.Object

// history holds the next versions of one object, nil where it does not exist.
type history struct {
	source string
	now    object
	next   []object
}

// step brings the object to its next version.
func (h *history) step() (from, to object) {
	from, to = h.now, h.next[0]
	h.now, h.next = to, h.next[1:]
	return from, to
}

// unfinished picks an object that has not reached its last version, nil if all have.
func unfinished(g *gen, histories []*history) *history {
	left := slices.DeleteFunc(slices.Clone(histories), func(h *history) bool { return len(h.next) == 0 })
	if len(left) == 0 {
		return nil
	}
	return random.Pick(g, left...)
}

// historiesOf returns a history for every object in any of the clusters, with its version in each
// of them.
func historiesOf(clusters ...oracle.Cluster) []*history {
	index := map[string]*history{}
	var all []*history
	for i, c := range clusters {
		for _, o := range objectsOf(clone(c)) {
			key := fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
			h := index[key]
			if h == nil {
				h = &history{source: fmt.Sprintf("%T", o), next: make([]object, len(clusters))}
				index[key], all = h, append(all, h)
			}
			h.next[i] = o
		}
	}
	return all
}

func objectsOf(c oracle.Cluster) []object {
	var objects []object
	for _, o := range c.Namespaces {
		objects = append(objects, o)
	}
	for _, o := range c.Pods {
		objects = append(objects, o)
	}
	objects = append(objects, policiesOf(c)...)
	for _, o := range c.CIDRGroups {
		objects = append(objects, o)
	}
	for _, o := range c.Nodes {
		objects = append(objects, o)
	}
	return objects
}

func policiesOf(c oracle.Cluster) []object {
	var objects []object
	for _, o := range c.NetworkPolicies {
		objects = append(objects, o)
	}
	for _, o := range c.AdminNetworkPolicies {
		objects = append(objects, o)
	}
	for _, o := range c.BaselineAdminNetworkPolicies {
		objects = append(objects, o)
	}
	for _, o := range c.ClusterNetworkPolicies {
		objects = append(objects, o)
	}
	return objects
}

// replay feeds histories to a policy cache and returns the last snapshot. The order is random
// except that versions of one object follow one another.
func replay(t *testing.T, g *gen, histories []*history, cfg clusterwatch.Config) *policy.Snapshot {
	source := newFakeSource()
	defer source.shutdown()
	var last *policy.Snapshot
	cfg.NodeName, cfg.MinInterval, cfg.Registerer = here, random.Pick(g, 0, time.Second), prometheus.NewRegistry()
	c, err := clusterwatch.New(source, cfg, func(_ context.Context, s *policy.Snapshot, _ time.Time, _ bool) { last = s })
	if err != nil {
		t.Fatal(err)
	}
	for range g.IntN(3*len(histories) + 1) { // objects that exist before the cache starts
		source.step(g, histories)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	for source.step(g, histories) {
		if g.OneIn(4) {
			time.Sleep(random.Pick(g, 0, time.Millisecond, time.Minute))
		}
	}
	time.Sleep(time.Hour) // the fake clock of the bubble: wait until everything has settled
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return last
}

// fakeSource serves objects to the informers of a policy cache, by their type.
type fakeSource map[string]*fcache.FakeControllerSource

// listerWatcher makes the informers list before they watch: the fake does not support WatchList.
type listerWatcher struct{ *fcache.FakeControllerSource }

// IsWatchListSemanticsUnSupported is called by informers.
func (listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func newFakeSource() fakeSource {
	f := fakeSource{}
	for _, o := range []object{&corev1.Namespace{}, &corev1.Pod{}, &corev1.Node{}, &networkingv1.NetworkPolicy{},
		&v1alpha1.AdminNetworkPolicy{}, &v1alpha1.BaselineAdminNetworkPolicy{}, &proposed.ClusterNetworkPolicy{}, &proposed.CIDRGroup{}} {
		f[fmt.Sprintf("%T", o)] = fcache.NewFakeControllerSource()
	}
	return f
}

func (f fakeSource) Objects(kind *compile.Kind) cache.ListerWatcher {
	return listerWatcher{f[fmt.Sprintf("%T", kind.New())]}
}

func (f fakeSource) Node(string) cache.ListerWatcher { return f.Objects(compile.KindNode) }

func (f fakeSource) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (f fakeSource) shutdown() {
	for _, s := range f {
		s.Shutdown()
	}
}

// step brings a random object to its next version. It returns false after every object has reached
// its last version.
func (f fakeSource) step(g *gen, histories []*history) bool {
	h := unfinished(g, histories)
	if h == nil {
		return false
	}
	from, to := h.step()
	f.change(f[h.source], from, to, g.OneIn(8))
	return true
}

// change turns one version of an object into the next. A new UID means a new object. If missed is
// set, the watch breaks, so that only a new list shows the change.
func (f fakeSource) change(s *fcache.FakeControllerSource, from, to object, missed bool) {
	add, modify, remove := s.Add, s.Modify, s.Delete
	if missed {
		add, modify, remove = s.AddDropWatch, s.ModifyDropWatch, s.DeleteDropWatch
		defer s.ResetWatch()
	}
	if from != nil {
		from = from.DeepCopyObject().(object) // the fake modifies the object that it deletes
	}
	switch {
	case from == nil && to == nil:
	case from == nil:
		add(to)
	case to == nil:
		remove(from)
	case from.GetUID() == to.GetUID():
		modify(to)
	default:
		remove(from)
		add(to)
	}
}
