package policycache

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	kubernetestypes "k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	policytypes "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/scheme"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policycache/apiconn"
	"sigs.k8s.io/kube-network-policies/pkg/policycache/podwatch"
)

// APIServer is the Source of a real cluster. It needs the rights to list and
// watch namespaces, pods, nodes, networkpolicies, and the administrators' kinds
// that are enabled.
type APIServer struct {
	client   kubernetes.Interface
	pods     *podwatch.Pods
	policies map[*compile.Kind]rest.Interface
}

// Connect returns the Source of the cluster that config leads to. Pods have a connection
// of their own: while many of them change, all other objects are received at once. Only
// changes of pods set the pace.
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

// newAPIServer returns the Source of the cluster that config leads to, over these
// connections. pace is that of overPods.
func newAPIServer(config *rest.Config, overPods, over *http.Client, pace podwatch.Pace) (*APIServer, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // retries are paced by the Cache, for all kinds together
	policies := map[*compile.Kind]rest.Interface{}
	for _, k := range compile.Kinds {
		client, err := policyClient(config, over, k)
		if err != nil {
			return nil, err
		}
		policies[k] = client
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

// codecs know the objects and lists of all kinds of policy.
var codecs = func() serializer.CodecFactory {
	types := runtime.NewScheme()
	utilruntime.Must(kubernetestypes.AddToScheme(types))
	utilruntime.Must(policytypes.AddToScheme(types))
	return serializer.NewCodecFactory(types)
}()

// policyClient returns a client of the group and version that has a kind of policy.
func policyClient(config *rest.Config, over *http.Client, kind *compile.Kind) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	group := kind.Resource.GroupVersion()
	config.GroupVersion, config.APIPath = &group, "/apis"
	config.NegotiatedSerializer = codecs.WithoutConversion()
	if kind.Flag == "" { // the others are custom resources, which are served as JSON only
		config.ContentType = runtime.ContentTypeProtobuf
	}
	return rest.RESTClientForConfigAndClient(config, over)
}

// Kubernetes returns the client of Kubernetes' own kinds.
func (a *APIServer) Kubernetes() kubernetes.Interface { return a.client }

// Objects lists and watches all objects of a kind, of pods those that are on a node.
func (a *APIServer) Objects(kind *compile.Kind) cache.ListerWatcher {
	switch kind {
	case compile.KindNamespace:
		api := a.client.CoreV1().Namespaces()
		return listWatch(a.client, metav1.ListOptions{}, api.List, api.Watch)
	case compile.KindNode:
		api := a.client.CoreV1().Nodes()
		return listWatch(a.client, metav1.ListOptions{}, api.List, api.Watch)
	case compile.KindPod:
		return a.Pods(PodQuery{})
	}
	return cache.NewListWatchFromClient(a.policies[kind], kind.Resource.Resource, metav1.NamespaceAll, fields.Everything())
}

// Node lists and watches the one node of that name, so that the heartbeats of
// the others go elsewhere.
func (a *APIServer) Node(name string) cache.ListerWatcher {
	api := a.client.CoreV1().Nodes()
	return listWatch(a.client, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}, api.List, api.Watch)
}

// nodeField is the field that has the node of a pod.
const nodeField = "spec.nodeName"

// Pods lists and watches the pods of a query that are on a node: before that, a pod has no
// address, and nothing waits for one. Only a list of all pods is streamed: for a
// streamed list, whatever it selects, an API server copies and sorts all pods of the cluster, and
// keeps the copy while the watch goes on. For other lists it has indexes by namespace and node.
func (a *APIServer) Pods(q PodQuery) cache.ListerWatcher {
	onNode := fields.OneTermNotEqualSelector(nodeField, "")
	if q.Node != "" {
		onNode = fields.OneTermEqualSelector(nodeField, q.Node)
	}
	pods, options := a.pods.In(q.Namespace), metav1.ListOptions{LabelSelector: q.Labels, FieldSelector: onNode.String()}
	if q != (PodQuery{}) {
		return listWatch(unstreamed{}, options, pods.List, pods.Watch)
	}
	return listWatch(a.client, options, pods.List, pods.Watch)
}

// unstreamed is a client whose lists are not streamed.
type unstreamed struct{}

// IsWatchListSemanticsUnSupported is for cache.ToListWatcherWithWatchListSemantics.
func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// Run returns when ctx ends. The server runs by itself.
func (a *APIServer) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// listWatch joins the two calls of a typed client, which is one of client's, about the objects
// that the selectors of options select.
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
