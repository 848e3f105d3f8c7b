package policycache

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// published is one call of Publish, with what was compiled.
type published struct {
	in    string // see describe
	since time.Duration
	at    time.Duration
}

// harness runs a Cache. Its times count from its start.
type harness struct {
	*Cache
	err    error
	cancel context.CancelFunc
	done   chan struct{}
	each   chan struct{} // one for each snapshot, for tests outside a bubble

	mu   sync.Mutex
	runs []published
}

func start(t *testing.T, source Source, minInterval time.Duration) *harness {
	t.Helper()
	h := &harness{done: make(chan struct{}), each: make(chan struct{}, 1000)}
	begin := time.Now()
	var in compile.Input
	var err error
	h.Cache, err = New(source, Config{
		NodeName: "n", Features: compile.AllFeatures(), MinInterval: minInterval, Registerer: prometheus.NewRegistry(),
	}, func(_ context.Context, s *policy.Snapshot, since time.Time) {
		if s == nil {
			t.Error("published no snapshot")
		}
		h.mu.Lock()
		h.runs = append(h.runs, published{describe(in), since.Sub(begin), time.Since(begin)})
		h.mu.Unlock()
		h.each <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	h.compile = func(i compile.Input) *policy.Snapshot {
		in = i
		return compile.Compile(i)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, h.cancel = context.WithCancel(ctx)
	go func() {
		defer close(h.done)
		h.err = h.Run(ctx)
	}()
	t.Cleanup(func() {
		h.cancel()
		<-h.done
	})
	return h
}

// all returns what was published so far.
func (h *harness) all() []published {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runs)
}

func (h *harness) last(t *testing.T) published {
	t.Helper()
	all := h.all()
	if len(all) == 0 {
		t.Fatal("nothing was published")
	}
	return all[len(all)-1]
}

// describe writes an Input in a line: objects in order, pods with addresses.
func describe(in compile.Input) string {
	var s []string
	for _, o := range in.Namespaces {
		s = append(s, "ns/"+o.Name)
	}
	for _, o := range in.Nodes {
		s = append(s, "node/"+o.Name)
	}
	for _, o := range in.NetworkPolicies {
		s = append(s, "np/"+o.Name)
	}
	for _, o := range in.Pods {
		name := "pod/" + o.Name
		for _, ip := range o.Status.PodIPs {
			name += "=" + ip.IP
		}
		s = append(s, name)
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}

func pod(name, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name + ip), ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
}

func denyAll(name string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, ResourceVersion: "1"}}
}

// cluster is a fake API server that gives versions, as the real one does.
type cluster struct {
	*fake.Clientset
	t       *testing.T
	version int
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	return &cluster{fake.NewClientset(objects...), t, 1}
}

func (c *cluster) next(o metav1.Object) {
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
}

func (c *cluster) create(o runtime.Object) {
	c.t.Helper()
	c.next(o.(metav1.Object))
	if err := c.Tracker().Add(o); err != nil {
		c.t.Fatal(err)
	}
}

var resources = map[string]string{"*v1.Pod": "pods", "*v1.Node": "nodes", "*v1.Namespace": "namespaces", "*v1.NetworkPolicy": "networkpolicies"}

// update stores a changed copy of o.
func update[O interface {
	runtime.Object
	metav1.Object
}](c *cluster, o O, change func(O)) O {
	c.t.Helper()
	o = o.DeepCopyObject().(O)
	change(o)
	c.next(o)
	group := corev1.SchemeGroupVersion
	if _, ok := any(o).(*networkingv1.NetworkPolicy); ok {
		group = networkingv1.SchemeGroupVersion
	}
	if err := c.Tracker().Update(group.WithResource(resources[fmt.Sprintf("%T", o)]), o, o.GetNamespace()); err != nil {
		c.t.Fatal(err)
	}
	return o
}

func (c *cluster) deletePod(name string) {
	c.t.Helper()
	if err := c.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "x", name); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) deletePolicy(name string) {
	c.t.Helper()
	if err := c.Tracker().Delete(networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), "x", name); err != nil {
		c.t.Fatal(err)
	}
}
