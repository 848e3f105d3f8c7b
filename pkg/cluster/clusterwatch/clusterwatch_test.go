package clusterwatch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// late is a Source with a kind that cannot be listed at first.
type late struct {
	Source
	kind    string
	arrived chan struct{}
}

func (l late) wait(kind string, lw cache.ListerWatcher) cache.ListerWatcher {
	inner := cache.ToListerWatcherWithContext(lw)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if kind == l.kind {
				<-l.arrived
			}
			return inner.ListWithContext(ctx, o)
		},
		WatchFuncWithContext: inner.WatchWithContext,
	}, lw)
}

func (l late) Objects(kind *compile.Kind) cache.ListerWatcher {
	return l.wait(kind.Name, l.Source.Objects(kind))
}

func TestNothingIsPublishedBeforeAllKindsSynced(t *testing.T) {
	for _, kind := range allNames {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, namespace("x"), pod("a", "10.0.0.1"), node("n"), denyAll("deny"),
					adminPolicy("p"), baselinePolicy("default"), clusterPolicy("q"))
				source := late{c.source(), kind, make(chan struct{})}
				h := startWith(t, source, Config{Kinds: allKinds})
				time.Sleep(3 * time.Second)
				if got := h.all(); len(got) > 0 {
					t.Errorf("published %v without a list of kind %s", got, kind)
				}
				close(source.arrived)
				synctest.Wait()
				got := h.all()
				if want := "anp/p banp/default cnp/q node/n np/deny ns/x pod/a=10.0.0.1"; len(got) != 1 || got[0].in != want {
					t.Errorf("published %v, want %s once", got, want)
				}
			})
		})
	}
}

// TestPodRangesAreReportedBeforeTheFirstSnapshot: only those of this node, even if all nodes
// are listed.
func TestPodRangesAreReportedBeforeTheFirstSnapshot(t *testing.T) {
	for _, kinds := range [][]*compile.Kind{nil, allKinds} {
		t.Run(fmt.Sprint("with ", kinds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				own, other := node("n"), node("other")
				own.Spec.PodCIDRs, other.Spec.PodCIDRs = []string{"10.244.1.0/24"}, []string{"10.244.2.0/24"}
				source := late{newCluster(t, own, other).source(), compile.KindPod.Name, make(chan struct{})}
				var got []netip.Prefix
				h := startWith(t, source, Config{Kinds: kinds, PodRanges: func(ranges []netip.Prefix) { got = append(got, ranges...) }})
				synctest.Wait()
				if want := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}; !slices.Equal(got, want) || len(h.all()) > 0 {
					t.Errorf("pod ranges %v and %d snapshots, want %v and none", got, len(h.all()), want)
				}
				close(source.arrived)
				synctest.Wait()
			})
		})
	}
}

func TestAnEmptyClusterHasASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, newCluster(t).source(), time.Second)
		synctest.Wait()
		if got := h.all(); len(got) != 1 || got[0] != (published{}) {
			t.Errorf("published %v, want an empty snapshot at once", got)
		}
	})
}

func TestOnlyWhatPolicyDependsOnIsCompiled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, n, deny, x := pod("a", "10.0.0.1"), node("n"), denyAll("deny"), namespace("x")
		c := newCluster(t, a, n, deny, x)
		h := start(t, c.source(), 0)
		synctest.Wait()
		count := func() int { synctest.Wait(); return len(h.all()) }
		before := count()

		for i := range 5 {
			update(c, n, func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Unix(int64(i), 0)}}
			})
		}
		update(c, a, func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} })
		update(c, a, func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "1"} })
		update(c, a, func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}} })
		update(c, x, func(ns *corev1.Namespace) { ns.Status.Phase = corev1.NamespaceTerminating })
		update(c, deny, func(p *networkingv1.NetworkPolicy) { p.Annotations = map[string]string{"a": "1"} })
		update(c, deny, func(p *networkingv1.NetworkPolicy) { p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}} })
		if got := count(); got != before {
			t.Errorf("%d compiles for what concerns no policy", got-before)
		}

		for i, change := range []func(){
			func() { a = update(c, a, func(p *corev1.Pod) { p.Labels = map[string]string{"l": "1"} }) },
			func() { a = update(c, a, func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }) },
			func() {
				a = update(c, a, func(p *corev1.Pod) {
					p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}
				})
			},
			func() { a = update(c, a, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }) },
			func() { update(c, x, func(ns *corev1.Namespace) { ns.Labels = map[string]string{"l": "1"} }) },
			func() { update(c, n, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.0.0.0/24"} }) },
			func() { update(c, deny, func(p *networkingv1.NetworkPolicy) { p.Generation = 2 }) },
			func() { c.delete(deny) },
			func() { c.delete(a) },
		} {
			before := count()
			change()
			if got := count(); got != before+1 {
				t.Errorf("change %d: %d compiles, want 1", i, got-before)
			}
		}
	})
}

func TestOnlyWhatPoliciesAndTheirPeersDependOnIsCompiled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := func(ip, name string) []corev1.NodeAddress {
			return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}}
		}
		n, other, p, base, q := node("n"), node("other"), adminPolicy("p"), baselinePolicy("default"), clusterPolicy("q")
		other.Status.Addresses = addresses("192.168.0.2", "other")
		c := newCluster(t, n, other, p, base, q)
		h := startWith(t, c.source(), Config{Kinds: allKinds})
		synctest.Wait()
		if got, want := h.last(t).in, "anp/p banp/default cnp/q node/n node/other=192.168.0.2"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		count := func() int { synctest.Wait(); return len(h.all()) }
		before := count()

		for i := range 5 {
			other = update(c, other, func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Unix(int64(i), 0)}}
			})
		}
		other = update(c, other, func(n *corev1.Node) { n.Status.Addresses = addresses("192.168.0.2", "renamed") })
		other = update(c, other, func(n *corev1.Node) { n.Annotations = map[string]string{"a": "1"} })
		other = update(c, other, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		conditions := []metav1.Condition{{Type: "Accepted"}}
		p = update(c, p, func(p *v1alpha1.AdminNetworkPolicy) { p.Status.Conditions = conditions })
		base = update(c, base, func(p *v1alpha1.BaselineAdminNetworkPolicy) { p.Status.Conditions = conditions })
		q = update(c, q, func(p *proposed.ClusterNetworkPolicy) { p.Status.Conditions = conditions })
		if got := count(); got != before {
			t.Errorf("%d compiles for what concerns no policy", got-before)
		}

		for i, change := range []func(){
			func() { other = update(c, other, func(n *corev1.Node) { n.Labels = map[string]string{"l": "1"} }) },
			func() {
				update(c, other, func(n *corev1.Node) { n.Status.Addresses = addresses("192.168.0.3", "renamed") })
			},
			func() { update(c, p, func(p *v1alpha1.AdminNetworkPolicy) { p.Spec.Priority = 1 }) },
			func() { update(c, base, func(p *v1alpha1.BaselineAdminNetworkPolicy) { p.Generation = 2 }) },
			func() { update(c, q, func(p *proposed.ClusterNetworkPolicy) { p.Spec.Tier = v1beta1.BaselineTier }) },
			func() { c.delete(p) },
			func() { c.delete(base) },
			func() { c.delete(q) },
			func() { c.delete(other) },
		} {
			before := count()
			change()
			if got := count(); got != before+1 {
				t.Errorf("change %d: %d compiles, want 1", i, got-before)
			}
		}
	})
}

func TestLabelsAndAddressesOfNodesDoNotMatterUnlessNodesMayBePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := node("n")
		c := newCluster(t, n)
		h := start(t, c.source(), 0)
		synctest.Wait()
		update(c, n, func(n *corev1.Node) {
			n.Labels = map[string]string{"l": "1"}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}}
		})
		synctest.Wait()
		if got := h.all(); len(got) != 1 || got[0].in != "node/n" {
			t.Errorf("published %v, want the node once", got)
		}
	})
}

// TestOnlyKindsThatChangeOftenWait: while many pods change, their changes share snapshots,
// which are timed by the oldest. Policies do not wait, and neither do pods while few of them
// change.
func TestOnlyKindsThatChangeOftenWait(t *testing.T) {
	const interval = 200 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		h := start(t, c.source(), interval)
		time.Sleep(10 * time.Second)
		for i := range 4 * calmRate {
			c.create(pod("many"+strconv.Itoa(i), "10.0.0.1"))
			synctest.Wait() // its watches have little room
		}
		time.Sleep(2 * interval)
		type snapshot struct{ Since, At time.Duration } // in ms
		began, seen := time.Now(), len(h.all())
		next := func() (got []snapshot) {
			synctest.Wait()
			for _, p := range h.all()[seen:] {
				at := func(t time.Duration) time.Duration { return (t - 10*time.Second - 2*interval) / time.Millisecond }
				got = append(got, snapshot{at(p.since), at(p.at)})
			}
			seen += len(got)
			return got
		}
		for i := range 4 {
			c.create(pod("p"+strconv.Itoa(i), "10.0.0.1"))
			time.Sleep(50 * time.Millisecond)
		}
		if diff := cmp.Diff([]snapshot{{0, 0}, {50, 200}}, next()); diff != "" {
			t.Errorf("while many pods change (-want +got):\n%s", diff)
		}
		time.Sleep(50 * time.Millisecond)
		c.create(denyAll("np"))
		if diff := cmp.Diff([]snapshot{{250, 250}}, next()); diff != "" {
			t.Errorf("a policy meanwhile (-want +got):\n%s", diff)
		}
		time.Sleep(10*time.Second - time.Since(began))
		for i := range 2 {
			c.create(pod("q"+strconv.Itoa(i), "10.0.0.1"))
			time.Sleep(50 * time.Millisecond)
		}
		if diff := cmp.Diff([]snapshot{{10000, 10000}, {10050, 10050}}, next()); diff != "" {
			t.Errorf("after a quiet time (-want +got):\n%s", diff)
		}
	})
}

// TestOrderOfEventsIsIrrelevant is NP-54 for what is compiled.
func TestOrderOfEventsIsIrrelevant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const want = "node/n np/deny ns/x pod/a=10.0.0.1"
		permute([]int{0, 1, 2, 3}, func(order []int) {
			c := newCluster(t)
			h := start(t, c.source(), 0)
			synctest.Wait()
			for _, i := range order {
				c.create([]object{namespace("x"), node("n"), denyAll("deny"), pod("a", "10.0.0.1")}[i])
				synctest.Wait()
			}
			if got := h.last(t).in; got != want {
				t.Errorf("order %v: got %s, want %s", order, got, want)
			}
			h.cancel()
			<-h.done
		})
	})
}

// permute calls f with every order of s.
func permute(s []int, f func([]int)) {
	var rec func(int)
	rec = func(n int) {
		if n == len(s) {
			f(s)
			return
		}
		for i := n; i < len(s); i++ {
			s[n], s[i] = s[i], s[n]
			rec(n + 1)
			s[n], s[i] = s[i], s[n]
		}
	}
	rec(0)
}

// TestRecreatedPodReplacesTheOldOne is NP-51 for what is compiled.
func TestRecreatedPodReplacesTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pod("a", "10.0.0.1")
		c := newCluster(t, a)
		h := start(t, c.source(), time.Second)
		synctest.Wait()
		c.delete(a)
		c.create(pod("a", "10.0.0.2"))
		time.Sleep(2 * time.Second)
		if got, want := h.last(t).in, "pod/a=10.0.0.2"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestOnlyTheOwnNodeIsWatchedUnlessNodesMayBePeers(t *testing.T) {
	for _, tc := range []struct {
		kinds []*compile.Kind
		want  string
	}{
		{nil, "metadata.name=n"},
		{[]*compile.Kind{compile.KindAdminNetworkPolicy}, ""},
		{[]*compile.Kind{compile.KindBaselineAdminNetworkPolicy}, ""},
		{[]*compile.Kind{compile.KindClusterNetworkPolicy}, ""},
	} {
		t.Run(fmt.Sprint(names(tc.kinds)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				var selectors []string
				c.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
					selectors = append(selectors, a.(clienttesting.ListAction).GetListRestrictions().Fields.String())
					return false, nil, nil
				})
				c.PrependWatchReactor("nodes", func(a clienttesting.Action) (bool, watch.Interface, error) {
					selectors = append(selectors, a.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String())
					return false, nil, nil
				})
				startWith(t, c.source(), Config{Kinds: tc.kinds})
				synctest.Wait()
				if want := []string{tc.want, tc.want}; !slices.Equal(selectors, want) {
					t.Errorf("%+v: field selectors %q, want %q", names(tc.kinds), selectors, want)
				}
			})
		})
	}
}

// withoutNodes refuses to yield nodes until they are granted.
func withoutNodes(c *cluster) (granted *atomic.Bool) {
	granted = new(atomic.Bool)
	refuse := func() (bool, error) {
		return !granted.Load(), apierrors.NewForbidden(corev1.Resource("nodes"), "n", errors.New("no rule grants it"))
	}
	c.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		refused, err := refuse()
		return refused, nil, err
	})
	c.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		refused, err := refuse()
		return refused, nil, err
	})
	return granted
}

// TestKindsThatCannotBeListedAreNamed: the right to list nodes is missing.
func TestKindsThatCannotBeListedAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, node("n"))
		granted := withoutNodes(c)
		h := start(t, c.source(), 0)
		synctest.Wait()
		if err := h.Listed(); err == nil || err.Error() != `not listed yet: Node: nodes "n" is forbidden: no rule grants it` {
			t.Errorf("without the right: %v", err)
		}
		if got := len(h.all()); got != 0 || h.failures(kindNode) == 0 {
			t.Errorf("%d snapshots, want none; %v failures counted", got, h.failures(kindNode))
		}
		granted.Store(true)
		time.Sleep(time.Minute)
		if err := h.Listed(); err != nil {
			t.Errorf("with the right: %v", err)
		}
		h.last(t)
	})
}

// TestAllButNodesIsEnforcedWithoutTheRightToReadThem: a rule that denies nodes denies every
// address until the nodes are known.
func TestAllButNodesIsEnforcedWithoutTheRightToReadThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := node("m")
		other.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.5"}}
		c := newCluster(t, namespace("x"), node("n"), other, pod("web", "10.0.0.1"), denyAll("isolation"))
		admin := adminPolicy("no-nodes")
		admin.Spec.Subject.Namespaces = &metav1.LabelSelector{}
		admin.Spec.Egress = []v1alpha1.AdminNetworkPolicyEgressRule{{
			Action: v1alpha1.AdminNetworkPolicyRuleActionDeny, To: []v1alpha1.AdminNetworkPolicyEgressPeer{{Nodes: &metav1.LabelSelector{}}},
		}}
		c.create(admin)
		granted := withoutNodes(c)
		h := startWith(t, c.source(), Config{Kinds: []*compile.Kind{compile.KindAdminNetworkPolicy}})
		time.Sleep(2 * rightsPatience)
		h.wantVerdicts(t, "without the right", map[[2]string]bool{
			{"192.0.2.9", "10.0.0.1"}: false, {"10.0.0.1", "192.0.2.5"}: false, {"10.0.0.1", "192.0.2.9"}: false, {"192.0.2.9", "192.0.2.5"}: true,
		})
		if err := h.Healthy(); err == nil || err.Error() != `not listed yet: Node: nodes "n" is forbidden: no rule grants it` {
			t.Errorf("without the right: %v", err)
		}
		granted.Store(true)
		time.Sleep(time.Minute)
		h.wantVerdicts(t, "with the right", map[[2]string]bool{
			{"192.0.2.9", "10.0.0.1"}: false, {"10.0.0.1", "192.0.2.5"}: false, {"10.0.0.1", "192.0.2.9"}: true,
		})
		if err := h.Healthy(); err != nil {
			t.Errorf("with the right: %v", err)
		}
	})
}

// broken is a Source whose pods can be listed but, while down, not watched.
type broken struct {
	Source
	down *atomic.Bool
	err  error
}

func (b broken) Objects(kind *compile.Kind) cache.ListerWatcher {
	objects := b.Source.Objects(kind)
	if kind != compile.KindPod {
		return objects
	}
	inner := cache.ToListerWatcherWithContext(objects)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: inner.ListWithContext,
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if b.down.Load() {
				return nil, b.err
			}
			return inner.WatchWithContext(ctx, o)
		},
	}, objects)
}

func TestFailedWatchesAreCountedAndObjectsKept(t *testing.T) {
	for name, err := range map[string]error{
		"retried by the library, without a log": apierrors.NewTooManyRequests("busy", 1),
		"leads to another list":                 apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no")),
		"too old a version":                     apierrors.NewResourceExpired("old"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, down := newCluster(t, pod("a", "10.0.0.1")), &atomic.Bool{}
				down.Store(true)
				h := start(t, broken{c.source(), down, err}, time.Second)
				time.Sleep(10 * time.Minute)
				if got := testutil.ToFloat64(h.metrics.watchErrors.WithLabelValues(kindPod)); got < 10 {
					t.Errorf("%v errors counted in 10 minutes", got)
				}
				if got := testutil.ToFloat64(h.metrics.watchErrors.WithLabelValues(kindNode)); got != 0 {
					t.Errorf("%v errors counted for nodes", got)
				}
				for _, p := range h.all() {
					if want := "pod/a=10.0.0.1"; p.in != want {
						t.Errorf("published %s, want %s", p.in, want)
					}
				}
				down.Store(false)
				time.Sleep(time.Minute)
				c.create(pod("b", "10.0.0.2"))
				time.Sleep(time.Minute)
				if got, want := h.last(t).in, "pod/a=10.0.0.1 pod/b=10.0.0.2"; got != want {
					t.Errorf("after the outage got %s, want %s", got, want)
				}
			})
		})
	}
}

// failing is a Source that cannot run.
type failing struct{ Source }

func (failing) Run(context.Context) error { return errors.New("no source") }

func TestRunEndsWithItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, failing{newCluster(t).source()}, 0)
		<-h.done
		if h.err == nil || h.err.Error() != "no source" {
			t.Errorf("got %v, want the source's error", h.err)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails if a goroutine is left
		h := start(t, newCluster(t).source(), 0)
		synctest.Wait()
		h.cancel()
		<-h.done
		if h.err != nil {
			t.Error(h.err)
		}
	})
}

func TestConfigNamesItsFaults(t *testing.T) {
	_, err := New(newCluster(t).source(), Config{MinInterval: -1, Delay: -1}, nil)
	want := "policy cache: NodeName is empty\nMinInterval is negative\nDelay is negative\nRegisterer is nil"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAddressConflictsAreReported checks that conflicts are counted while they last, that each
// is logged once, and that the log has a bound: a kubelet can write any number of statuses.
func TestAddressConflictsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func(name, ip string) *corev1.Pod {
			p := pod(name, ip)
			p.Spec.NodeName = "other"
			return p
		}
		c := newCluster(t, pod("a", "10.0.0.1"), away("b", "10.0.0.1"), away("c", "10.0.0.3"))
		h := start(t, c.source(), 0)
		conflicts := func(kind clusterstate.ConflictKind, want float64) {
			t.Helper()
			synctest.Wait()
			if got := testutil.ToFloat64(h.metrics.conflicts.WithLabelValues(string(kind))); got != want {
				t.Errorf("%v conflicts %s, want %v", got, kind, want)
			}
		}
		logged := func(want int) {
			t.Helper()
			if got := strings.Count(h.log.String(), conflictMessages[clusterstate.LocalPod]); got != want {
				t.Errorf("logged %d times, want %d:\n%s", got, want, h.log.String())
			}
		}
		conflicts(clusterstate.LocalPod, 1)
		conflicts(clusterstate.OtherPod, 0)
		c.create(pod("d", "10.0.0.4"))
		time.Sleep(time.Second)
		conflicts(clusterstate.LocalPod, 1)
		logged(1)
		for i := range 2 * conflictLogBurst {
			p := away(fmt.Sprint("more", i), "10.0.0.4")
			p.Spec.NodeName = fmt.Sprint("node", i)
			c.create(p)
		}
		time.Sleep(time.Second)
		conflicts(clusterstate.LocalPod, 2*conflictLogBurst+1)
		if got := strings.Count(h.log.String(), conflictMessages[clusterstate.LocalPod]); got < conflictLogBurst || got > conflictLogBurst+3 {
			t.Errorf("logged %d times", got)
		}
		c.delete(pod("d", "10.0.0.4"))
		c.delete(away("b", "10.0.0.1"))
		time.Sleep(time.Second)
		conflicts(clusterstate.LocalPod, 0)
		conflicts(clusterstate.OtherPod, 2*conflictLogBurst-1)
		for _, kind := range clusterstate.ConflictKinds {
			if conflictMessages[kind] == "" {
				t.Errorf("no message about %s", kind)
			}
		}
		if h.AddressConflicts() != 2*conflictLogBurst-1 {
			t.Errorf("%d conflicts", h.AddressConflicts())
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startWith(t, newCluster(t, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), denyAll("deny")).source(), Config{Kinds: allKinds})
		synctest.Wait()
		problems, err := testutil.GatherAndLint(h.cfg.Registerer.(*prometheus.Registry))
		if err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
		want := "# HELP netpol_objects Objects that are known, by kind.\n# TYPE netpol_objects gauge\n"
		for _, kind := range allNames {
			want += fmt.Sprintf("netpol_objects{kind=%q} %d\n", kind, map[string]int{kindPod: 2, kindNetworkPolicy: 1}[kind])
		}
		if err := testutil.GatherAndCompare(h.cfg.Registerer.(*prometheus.Registry), strings.NewReader(want), "netpol_objects"); err != nil {
			t.Error(err)
		}
	})
}
