package clusterwatch

import (
	"context"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	kubernetestypes "k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiconn"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// APIServer is the Source of a real cluster. It needs the rights to list and
// watch namespaces, pods, nodes, networkpolicies, and the administrators' kinds
// that are enabled.
type APIServer struct {
	client   kubernetes.Interface
	pods     *podwatch.Pods
	policies map[schema.GroupVersion]rest.Interface // and CIDRGroups
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
	policies := map[schema.GroupVersion]rest.Interface{}
	for _, k := range apiKinds {
		for _, r := range k.Resources() {
			client, err := policyClient(config, over, r.GroupVersion(), k.IsCustom())
			if err != nil {
				return nil, err
			}
			policies[r.GroupVersion()] = client
		}
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfigAndClient(config, over)
	if err != nil {
		return nil, err
	}
	pods, err := corev1.NewForConfigAndClient(config, overPods)
	if err != nil {
		return nil, err
	}
	return &APIServer{client, podwatch.New(pods.RESTClient(), pace), policies}, nil
}

// apiKinds are the kinds that the clients of Kubernetes lack, or decode less of.
var apiKinds = append(slices.Clone(compile.Kinds), compile.KindCIDRGroup)

// codecs know the objects and lists of apiKinds. All versions of a kind share a Go
// type.
var codecs = func() serializer.CodecFactory {
	types := runtime.NewScheme()
	utilruntime.Must(kubernetestypes.AddToScheme(types))
	for _, k := range apiKinds {
		if k.Install != nil {
			utilruntime.Must(k.Install(types))
		}
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

// policyClient returns a client for a group and version with kinds of policy, which may be
// custom resources.
func policyClient(config *rest.Config, over *http.Client, version schema.GroupVersion, custom bool) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.NegotiatedSerializer = codecs.WithoutConversion()
	if !custom { // custom resources are served as JSON only
		config.ContentType = runtime.ContentTypeProtobuf
	}
	return rest.RESTClientForConfigAndClient(config, over)
}

// Kubernetes returns the client for built-in kinds.
func (a *APIServer) Kubernetes() kubernetes.Interface { return a.client }

// Objects lists and watches all objects of a kind. Pods without a node are left out.
func (a *APIServer) Objects(kind *compile.Kind) cache.ListerWatcher {
	switch kind {
	case compile.KindNamespace:
		api := a.client.CoreV1().Namespaces()
		return listWatch(a.client, metav1.ListOptions{}, api.List, api.Watch)
	case compile.KindNode:
		api := a.client.CoreV1().Nodes()
		return listWatch(a.client, metav1.ListOptions{}, api.List, api.Watch)
	case compile.KindPod:
		options := metav1.ListOptions{FieldSelector: fields.OneTermNotEqualSelector("spec.nodeName", "").String()}
		return listWatch(a.client, options, a.pods.List, a.pods.Watch)
	}
	if !kind.IsCustom() {
		return a.listWatch(kind.Resource)
	}
	v := &versions{kind: kind, find: func(ctx context.Context) (schema.GroupVersionResource, bool, error) {
		return served.First(ctx, a.client.Discovery(), kind.Resources())
	}}
	for _, r := range kind.Resources() {
		v.inner = append(v.inner, cache.ToListerWatcherWithContext(a.listWatch(r)))
	}
	return &cache.ListWatch{ListWithContextFunc: v.list, WatchFuncWithContext: v.watch}
}

func (a *APIServer) listWatch(r schema.GroupVersionResource) cache.ListerWatcher {
	return cache.NewListWatchFromClient(a.policies[r.GroupVersion()], r.Resource, metav1.NamespaceAll, fields.Everything())
}

// Node lists and watches the node of this name, so that heartbeats of other nodes are not
// received.
func (a *APIServer) Node(name string) cache.ListerWatcher {
	api := a.client.CoreV1().Nodes()
	return listWatch(a.client, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}, api.List, api.Watch)
}

// Run returns when ctx ends: the ListerWatchers need no goroutine.
func (a *APIServer) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// listWatch makes a ListerWatcher of the two methods of a typed client, which belongs to
// client, with the selectors of options.
func listWatch[L runtime.Object](
	client any,
	selecting metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector, o.LabelSelector = selecting.FieldSelector, selecting.LabelSelector
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.LabelSelector = selecting.FieldSelector, selecting.LabelSelector
			return follow(ctx, o)
		},
	}, client)
}
