package clusterwatch

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient/apiclienttest"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// TestMain removes the handler that limits the rate of errors: it keeps the time of the last
// error, which is in the future in the bubble of another test.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// published is one call of Publish with its snapshot.
type published struct {
	in    string // see describe
	since time.Duration
	at    time.Duration

	unlisted bool // it is the saved state
}

// harness runs a Cache. Its times count from its start.
type harness struct {
	*Cache
	err    error
	cancel context.CancelFunc
	done   chan struct{}
	each   chan struct{} // one for each snapshot, for tests outside a bubble
	log    ktesting.Buffer

	mu       sync.Mutex
	runs     []published
	snapshot *policy.Snapshot // the last one
}

// start runs a Cache of the built-in kinds only.
func start(t *testing.T, source Source, minInterval time.Duration) *harness {
	t.Helper()
	return startWith(t, source, Config{MinInterval: minInterval})
}

// startWith runs a Cache with the intervals and kinds of cfg, and CIDRGroups if its features have them.
func startWith(t *testing.T, source Source, cfg Config) *harness {
	t.Helper()
	h := &harness{done: make(chan struct{}), each: make(chan struct{}, 1000)}
	begin := time.Now()
	recorded := &recorder{objects: map[string]string{}}
	var err error
	features := compile.AllFeatures()
	features.CIDRGroups = cfg.Features.CIDRGroups
	cfg.NodeName, cfg.Features, cfg.Registerer = "n", features, prometheus.NewRegistry()
	cfg.Jitter = spread()
	h.Cache, err = New(source, cfg, func(_ context.Context, s *policy.Snapshot, since time.Time, listed bool) {
		if s == nil {
			t.Error("published no snapshot")
		}
		h.mu.Lock()
		h.runs, h.snapshot = append(h.runs, published{recorded.in, since.Sub(begin), time.Since(begin), !listed}), s
		h.mu.Unlock()
		h.each <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	recorded.Cluster = h.view.(*clusterstate.Cluster)
	h.view = recorded
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	h.log = logger.GetSink().(ktesting.Underlier).GetBuffer()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	h.cancel = cancel
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

// wantVerdicts checks which packets the last snapshot allows, by source and destination.
func (h *harness) wantVerdicts(t *testing.T, when string, want map[[2]string]bool) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for ends, allowed := range want {
		if got := h.snapshot.Evaluate(policy.Query{Packet: packet.Packet{Proto: packet.TCP,
			Src: netip.AddrPortFrom(netip.MustParseAddr(ends[0]), 1), Dst: netip.AddrPortFrom(netip.MustParseAddr(ends[1]), 80)}}); got.Allowed() != allowed {
			t.Errorf("%s: a packet from %s to %s: %v, want allowed %v", when, ends[0], ends[1], got, allowed)
		}
	}
}

// recorder is a Cluster that records its objects.
type recorder struct {
	*clusterstate.Cluster
	objects map[string]string // by kind, namespace and name
	in      string            // of the last snapshot: objects in order, pods and nodes with addresses
}

func (r *recorder) Set(o any) bool {
	kind, prefix, meta, addrs := compile.KindPod, "pod/", metav1.ObjectMeta{}, []string(nil)
	switch o := o.(type) {
	case *compile.Pod:
		meta.Namespace, meta.Name = o.Endpoint.Namespace, o.Endpoint.Name
		for _, a := range o.Addrs {
			addrs = append(addrs, a.String())
		}
	case *corev1.Namespace:
		kind, prefix, meta = compile.KindNamespace, "ns/", o.ObjectMeta
	case *corev1.Node:
		kind, prefix, meta = compile.KindNode, "node/", o.ObjectMeta
		for _, a := range o.Status.Addresses {
			addrs = append(addrs, a.Address)
		}
	case *proposed.CIDRGroup:
		kind, prefix, meta = compile.KindCIDRGroup, "group/", o.ObjectMeta
	case *networkingv1.NetworkPolicy:
		kind, prefix, meta = compile.KindNetworkPolicy, "np/", o.ObjectMeta
	case *v1alpha1.AdminNetworkPolicy:
		kind, prefix, meta = compile.KindAdminNetworkPolicy, "anp/", o.ObjectMeta
	case *v1alpha1.BaselineAdminNetworkPolicy:
		kind, prefix, meta = compile.KindBaselineAdminNetworkPolicy, "banp/", o.ObjectMeta
	case *proposed.ClusterNetworkPolicy:
		kind, prefix, meta = compile.KindClusterNetworkPolicy, "cnp/", o.ObjectMeta
	}
	r.objects[fmt.Sprint(kind, "/", meta.Namespace, "/", meta.Name)] = strings.Join(append([]string{prefix + meta.Name}, addrs...), "=")
	return r.Cluster.Set(o)
}

func (r *recorder) Delete(kind *compile.Kind, namespace, name string) bool {
	delete(r.objects, fmt.Sprint(kind, "/", namespace, "/", name))
	return r.Cluster.Delete(kind, namespace, name)
}

func (r *recorder) Snapshot() *policy.Snapshot {
	r.in = strings.Join(slices.Sorted(maps.Values(r.objects)), " ")
	return r.Cluster.Snapshot()
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

func adminPolicy(name string) *v1alpha1.AdminNetworkPolicy {
	return &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
}

func baselinePolicy(name string) *v1alpha1.BaselineAdminNetworkPolicy {
	return &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
}

func clusterPolicy(name string) *proposed.ClusterNetworkPolicy {
	return &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
}

func group(name string, cidrs ...v1beta1.CIDR) *proposed.CIDRGroup {
	return &proposed.CIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Spec: proposed.CIDRGroupSpec{CIDRs: cidrs}}
}

// object is what all API kinds have in common.
type object interface {
	runtime.Object
	metav1.Object
}

// allKinds enables every kind there is.
var allKinds = []*compile.Kind{compile.KindAdminNetworkPolicy, compile.KindBaselineAdminNetworkPolicy, compile.KindClusterNetworkPolicy}

// allNames are the names of all kinds.
var allNames = []string{
	kindNamespace, kindNetworkPolicy, kindNode, kindPod, kindAdminNetworkPolicy, kindBaselineAdminNetworkPolicy, kindClusterNetworkPolicy,
}

var (
	kindNamespace                  = compile.KindNamespace.Name
	kindNetworkPolicy              = compile.KindNetworkPolicy.Name
	kindNode                       = compile.KindNode.Name
	kindPod                        = compile.KindPod.Name
	kindAdminNetworkPolicy         = compile.KindAdminNetworkPolicy.Name
	kindBaselineAdminNetworkPolicy = compile.KindBaselineAdminNetworkPolicy.Name
	kindClusterNetworkPolicy       = compile.KindClusterNetworkPolicy.Name
)

func names(kinds []*compile.Kind) []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// resources are the kinds as paths name them, by type.
var resources = map[string]schema.GroupVersionResource{
	"*v1.Pod":                              corev1.SchemeGroupVersion.WithResource("pods"),
	"*v1.Node":                             corev1.SchemeGroupVersion.WithResource("nodes"),
	"*v1.Namespace":                        corev1.SchemeGroupVersion.WithResource("namespaces"),
	"*v1.NetworkPolicy":                    networkingv1.SchemeGroupVersion.WithResource("networkpolicies"),
	"*v1alpha1.AdminNetworkPolicy":         {Group: v1alpha1.GroupName, Version: "v1alpha1", Resource: "adminnetworkpolicies"},
	"*v1alpha1.BaselineAdminNetworkPolicy": {Group: v1alpha1.GroupName, Version: "v1alpha1", Resource: "baselineadminnetworkpolicies"},
	"*proposed.CIDRGroup":                  compile.KindCIDRGroup.Resource,
	"*proposed.ClusterNetworkPolicy":       {Group: v1beta1.GroupName, Version: "v1beta1", Resource: "clusternetworkpolicies"},
}

func resourceOf(o object) schema.GroupVersionResource { return resources[fmt.Sprintf("%T", o)] }

// cluster is a fake API server that sets resource versions like the real one.
type cluster struct {
	*fake.Clientset
	admin   clienttesting.ObjectTracker
	t       *testing.T
	version int
}

func newCluster(t *testing.T, objects ...object) *cluster {
	types := runtime.NewScheme()
	for _, k := range append(compile.AdminKinds(), compile.KindCIDRGroup) {
		if err := k.Install(types); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{fake.NewClientset(), clienttesting.NewObjectTracker(types, codecs.UniversalDecoder()), t, 1}
	for _, o := range objects {
		if err := c.tracker(o).Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *cluster) source() Source { return unencoded{&APIServer{}, c} }

// unencoded is a Source of a cluster without encoding, not even of pods.
type unencoded struct {
	*APIServer
	c *cluster
}

func (u unencoded) Objects(kind *compile.Kind) cache.ListerWatcher {
	switch kind {
	case compile.KindNamespace:
		api := u.c.CoreV1().Namespaces()
		return apiclienttest.ListWatch(api, metav1.ListOptions{})
	case compile.KindNode:
		api := u.c.CoreV1().Nodes()
		return apiclienttest.ListWatch(api, metav1.ListOptions{})
	}
	return apiclienttest.ListWatch(tracked{u.c.trackerOf(kind.Resource), kind}, metav1.ListOptions{})
}

// tracked are the objects of a kind in the tracker of a fake client.
type tracked struct {
	clienttesting.ObjectTracker
	kind *compile.Kind
}

func (t tracked) List(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return t.ObjectTracker.List(t.kind.Resource, t.kind.Resource.GroupVersion().WithKind(t.kind.Name), metav1.NamespaceAll, o)
}

func (t tracked) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return t.ObjectTracker.Watch(t.kind.Resource, metav1.NamespaceAll, o)
}

func (u unencoded) Node(name string) cache.ListerWatcher {
	api := u.c.CoreV1().Nodes()
	return apiclienttest.ListWatch(api, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
}

// tracker returns the tracker for objects of o's kind.
func (c *cluster) tracker(o object) clienttesting.ObjectTracker { return c.trackerOf(resourceOf(o)) }

func (c *cluster) trackerOf(resource schema.GroupVersionResource) clienttesting.ObjectTracker {
	if resource.Group == v1alpha1.GroupName {
		return c.admin
	}
	return c.Tracker()
}

func (c *cluster) next(o metav1.Object) {
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
}

func (c *cluster) create(o object) {
	c.t.Helper()
	c.next(o)
	if err := c.tracker(o).Add(o); err != nil {
		c.t.Fatal(err)
	}
}

// update stores a changed copy of o.
func update[O object](c *cluster, o O, change func(O)) O {
	c.t.Helper()
	o = o.DeepCopyObject().(O)
	change(o)
	c.next(o)
	if err := c.tracker(o).Update(resourceOf(o), o, o.GetNamespace()); err != nil {
		c.t.Fatal(err)
	}
	return o
}

func (c *cluster) delete(o object) {
	c.t.Helper()
	if err := c.tracker(o).Delete(resourceOf(o), o.GetNamespace(), o.GetName()); err != nil {
		c.t.Fatal(err)
	}
}
