package policycache

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	policyapi "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policycache/apiconn"
	"sigs.k8s.io/kube-network-policies/pkg/policycache/podwatch"
)

// APIServer is the Source of a real cluster. It needs the rights to list and
// watch namespaces, pods, nodes, networkpolicies, and the administrators' kinds
// that are enabled.
type APIServer struct {
	client kubernetes.Interface
	pods   *podwatch.Pods
	admin  policyapi.Interface
}

// Connect returns the Source of the cluster that config leads to. Pods have a connection
// of their own: while many of them change, all other objects are received at once.
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
	config = rest.CopyConfig(config)
	config.QPS = -1                                             // retries are paced by the Cache, for all kinds together
	admin, err := policyapi.NewForConfigAndClient(config, over) // custom resources are served as JSON only
	if err != nil {
		return nil, err
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
	return &APIServer{client, podwatch.New(pods.RESTClient(), forPods.Listing), admin}, nil
}

// NewAPIServer returns the Source of the cluster that both clients talk to.
// admin serves the administrators' kinds, and may be nil where none is enabled.
func NewAPIServer(client kubernetes.Interface, admin policyapi.Interface) *APIServer {
	var connections apiconn.Connections
	return &APIServer{client, podwatch.New(client.CoreV1().RESTClient(), connections.Listing), admin}
}

// Kubernetes returns the client of Kubernetes' own kinds.
func (a *APIServer) Kubernetes() kubernetes.Interface { return a.client }

// Objects lists and watches all objects of a kind.
func (a *APIServer) Objects(kind *compile.Kind) cache.ListerWatcher { return listers[kind](a) }

// listers list and watch all objects of each kind.
var listers = map[*compile.Kind]func(a *APIServer) cache.ListerWatcher{
	compile.KindNamespace: func(a *APIServer) cache.ListerWatcher {
		api := a.client.CoreV1().Namespaces()
		return listWatch(a.client, fields.Everything(), api.List, api.Watch)
	},
	compile.KindNode: func(a *APIServer) cache.ListerWatcher {
		api := a.client.CoreV1().Nodes()
		return listWatch(a.client, fields.Everything(), api.List, api.Watch)
	},
	compile.KindPod: func(a *APIServer) cache.ListerWatcher {
		return listWatch(a.client, fields.Everything(), a.pods.List, a.pods.Watch)
	},
	compile.KindNetworkPolicy: func(a *APIServer) cache.ListerWatcher {
		api := a.client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)
		return listWatch(a.client, fields.Everything(), api.List, api.Watch)
	},
	compile.KindAdminNetworkPolicy: func(a *APIServer) cache.ListerWatcher {
		api := a.admin.PolicyV1alpha1().AdminNetworkPolicies()
		return listWatch(a.admin, fields.Everything(), api.List, api.Watch)
	},
	compile.KindBaselineAdminNetworkPolicy: func(a *APIServer) cache.ListerWatcher {
		api := a.admin.PolicyV1alpha1().BaselineAdminNetworkPolicies()
		return listWatch(a.admin, fields.Everything(), api.List, api.Watch)
	},
	compile.KindClusterNetworkPolicy: func(a *APIServer) cache.ListerWatcher {
		api := a.admin.PolicyV1alpha2().ClusterNetworkPolicies()
		return listWatch(a.admin, fields.Everything(), api.List, api.Watch)
	},
}

// Node lists and watches the one node of that name, so that the heartbeats of
// the others go elsewhere.
func (a *APIServer) Node(name string) cache.ListerWatcher {
	api := a.client.CoreV1().Nodes()
	return listWatch(a.client, fields.OneTermEqualSelector(metav1.ObjectNameField, name), api.List, api.Watch)
}

// Run returns when ctx ends. The server runs by itself.
func (a *APIServer) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// listWatch joins the two calls of a typed client, which is one of client's.
func listWatch[L runtime.Object](
	client any,
	selector fields.Selector,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
			return follow(ctx, o)
		},
	}, client)
}
