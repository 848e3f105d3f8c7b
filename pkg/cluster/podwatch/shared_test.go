package podwatch

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestStripKeepsWhatPolicyNeeds(t *testing.T) {
	in := realisticPod(7)
	now := metav1.Now()
	in.DeletionTimestamp = &now
	untouched := in.DeepCopy()
	got := NewShared().Strip(in)
	want := &compile.Pod{
		Endpoint: policy.Endpoint{Namespace: in.Namespace, Name: in.Name, ID: compile.NewPod(in).Endpoint.ID, Account: "app", Labels: policy.NewLabels(in.Labels), Ports: []policy.NamedPort{
			{Name: "http", Port: 8080, Proto: packet.TCP},
			{Name: "http-metrics", Port: 8081, Proto: packet.TCP},
			{Name: "proxy", Port: 15000, Proto: packet.TCP},
			{Name: "proxy-metrics", Port: 15001, Proto: packet.TCP},
		}},
		UID: in.UID, Node: in.Spec.NodeName, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
		Created: in.CreationTimestamp.Unix(), Terminating: true, OwnNetwork: true,
	}
	if diff := difference(want, got); diff != "" {
		t.Errorf("the pod differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(untouched, in); diff != "" {
		t.Errorf("the object given was modified (-before +after):\n%s", diff)
	}
}

// difference returns how got differs from want in any field, "" if it does not.
func difference(want, got *compile.Pod) string {
	type fields compile.Pod // without Equal, which leaves some fields out
	return cmp.Diff((*fields)(want), (*fields)(got), cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreUnexported(policy.Chain{}))
}

func share(p *pool[map[string]string], hash uint64, labels map[string]string) map[string]string {
	return p.get(hash,
		func(known map[string]string) bool { return maps.Equal(known, labels) },
		func() map[string]string { return labels })
}

func TestPoolForgetsWhatIsNotAskedFor(t *testing.T) {
	p := newPool[map[string]string]()
	for i := range 5 * poolSize {
		share(p, uint64(i), map[string]string{"n": fmt.Sprint(i)})
	}
	if n := len(p.now) + len(p.old); n > 2*poolSize {
		t.Errorf("the pool holds %d values, want at most %d", n, 2*poolSize)
	}
}

func TestPoolKeepsValuesOfOneHashApart(t *testing.T) {
	p := newPool[map[string]string]()
	a, b := map[string]string{"a": "1"}, map[string]string{"b": "1"}
	for range 2 {
		for _, want := range []map[string]string{a, b} {
			if diff := cmp.Diff(want, share(p, 1, want)); diff != "" {
				t.Errorf("the labels differ (-want +got):\n%s", diff)
			}
		}
	}
}

// BenchmarkPodMemory reports the heap of a pod that was read from the wire: in
// an informer's store as it is, and in a Cluster with a snapshot of it.
func BenchmarkPodMemory(b *testing.B) {
	const pods = 100_000
	measure := func(b *testing.B, take func(i int, message []byte), kept any) {
		before := heap()
		for i := range pods {
			take(i, marshal(b, realisticPod(i)))
		}
		b.ReportMetric(float64(heap()-before)/pods, "B/pod")
		runtime.KeepAlive(kept)
	}
	b.Run("informer", func(b *testing.B) {
		for b.Loop() {
			store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			measure(b, func(_ int, message []byte) {
				p := &corev1.Pod{}
				if err := p.Unmarshal(message); err != nil {
					b.Fatal(err)
				}
				_ = store.Add(p)
			}, store)
		}
	})
	b.Run("cluster", func(b *testing.B) {
		for b.Loop() {
			c := clusterstate.New(clusterstate.Config{NodeName: "node-0000", Features: compile.AllFeatures()})
			d := newDecoder(NewShared())
			var last *policy.Snapshot
			measure(b, func(i int, message []byte) {
				o, err := d.decode(message)
				if err != nil {
					b.Fatal(err)
				}
				c.Set(o.Pod)
				if i%1000 == 999 {
					last = c.Snapshot()
				}
			}, []any{c, &last})
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
