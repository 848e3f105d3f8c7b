package clusterwatch

import (
	"context"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiconn"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// APIServer is the Source of a real cluster. It needs the rights to list and
// watch namespaces, pods, nodes, networkpolicies, and the administrators' kinds
// that are enabled.
type APIServer struct {
	pods    *podwatch.Pods
	clients map[schema.GroupVersion]rest.Interface
}

// Connect returns the Source of the cluster of config. Pods have their own connection, so
// that other objects arrive without delay while many pods change. Only changes of pods set
// the pace.
func Connect(config *rest.Config) (*APIServer, error) {
	var forPods, forOthers apiconn.Connections
	overPods, err := forPods.Client(config)
	if err != nil {
		return nil, err
	}
	over, err := forOthers.Client(config)
	if err != nil {
		return nil, err
	}
	return newAPIServer(config, overPods, over, &forPods)
}

// newAPIServer returns the Source of the cluster of config over these connections. pace is
// the pace of overPods.
func newAPIServer(config *rest.Config, overPods, over *http.Client, pace podwatch.Pace) (*APIServer, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // retries are paced by the Cache, for all kinds together
	config.NegotiatedSerializer = codecs.WithoutConversion()
	builtIn := rest.CopyConfig(config)
	builtIn.ContentType = runtime.ContentTypeProtobuf // custom resources are served as JSON only
	clients := map[schema.GroupVersion]rest.Interface{}
	add := func(config *rest.Config, version schema.GroupVersion) (err error) {
		clients[version], err = apiclient.New(config, over, version)
		return err
	}
	for _, version := range []schema.GroupVersion{corev1.SchemeGroupVersion, networkingv1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion} {
		if err := add(builtIn, version); err != nil {
			return nil, err
		}
	}
	for _, k := range customKinds() {
		for _, r := range k.Resources() {
			if err := add(config, r.GroupVersion()); err != nil {
				return nil, err
			}
		}
	}
	pods, err := apiclient.New(builtIn, overPods, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &APIServer{podwatch.New(pods, pace), clients}, nil
}

// customKinds returns the kinds that are not built into Kubernetes.
func customKinds() []*compile.Kind {
	return append(slices.DeleteFunc(slices.Clone(compile.Kinds), func(k *compile.Kind) bool { return !k.IsCustom() }), compile.KindCIDRGroup)
}

// codecs know all objects and lists. All versions of a kind share a Go type.
var codecs = func() serializer.CodecFactory {
	types := runtime.NewScheme()
	utilruntime.Must(apiclient.Types.AddToScheme(types))
	for _, k := range customKinds() {
		utilruntime.Must(k.Install(types))
		for _, older := range k.Resources()[1:] {
			metav1.AddToGroupVersion(types, older.GroupVersion())
			for _, name := range []string{k.Name, k.Name + "List"} {
				o, err := types.New(k.Resource.GroupVersion().WithKind(name))
				utilruntime.Must(err)
				types.AddKnownTypeWithName(older.GroupVersion().WithKind(name), o)
			}
		}
	}
	return serializer.NewCodecFactory(types)
}()

// Objects lists and watches all objects of a kind. Pods without a node are left out.
func (a *APIServer) Objects(kind *compile.Kind) cache.ListerWatcher {
	if kind == compile.KindPod {
		return a.allPods()
	}
	if !kind.IsCustom() {
		return a.Selected(kind.Resource, metav1.NamespaceAll, metav1.ListOptions{})
	}
	v := &versions{kind: kind, find: func(ctx context.Context) (schema.GroupVersionResource, bool, error) {
		return served.First(ctx, a.clients[kind.Resource.GroupVersion()], kind.Resources())
	}}
	for _, r := range kind.Resources() {
		v.inner = append(v.inner, cache.ToListerWatcherWithContext(a.Selected(r, metav1.NamespaceAll, metav1.ListOptions{})))
	}
	return &cache.ListWatch{ListWithContextFunc: v.list, WatchFuncWithContext: v.watch}
}

func (a *APIServer) allPods() cache.ListerWatcher {
	return apiclient.ListWatch(a.pods, metav1.ListOptions{FieldSelector: fields.OneTermNotEqualSelector("spec.nodeName", "").String()})
}

// Selected lists and watches the objects of a resource that the selectors of options select, in a
// namespace or in all.
func (a *APIServer) Selected(r schema.GroupVersionResource, namespace string, selecting metav1.ListOptions) cache.ListerWatcher {
	return cache.NewFilteredListWatchFromClient(a.clients[r.GroupVersion()], r.Resource, namespace, func(o *metav1.ListOptions) {
		o.FieldSelector, o.LabelSelector = selecting.FieldSelector, selecting.LabelSelector
	})
}

// Node lists and watches the node of this name, so that heartbeats of other nodes are not
// received.
func (a *APIServer) Node(name string) cache.ListerWatcher {
	return a.Selected(compile.KindNode.Resource, metav1.NamespaceAll, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
}

// Run returns when ctx ends: the ListerWatchers need no goroutine.
func (a *APIServer) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
