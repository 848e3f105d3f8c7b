// Package apiclient makes clients of single API groups. It knows the few built-in groups that the
// programs need, because client-go's clients link all groups of Kubernetes. It decides nothing about
// requests.
package apiclient

import (
	"context"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Types are the types of the built-in groups, and what adds them to a scheme.
var Types = runtime.NewSchemeBuilder(
	authenticationv1.AddToScheme,
	authorizationv1.AddToScheme,
	coordinationv1.AddToScheme,
	corev1.AddToScheme,
	discoveryv1.AddToScheme,
	eventsv1.AddToScheme,
	networkingv1.AddToScheme,
)

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(Types.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// New returns a client for a group and version, over the connections of an HTTP client, or of its own
// if that is nil. Without a NegotiatedSerializer in config it knows the Types.
func New(config *rest.Config, over *http.Client, version schema.GroupVersion) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	if config.NegotiatedSerializer == nil {
		config.NegotiatedSerializer = codecs.WithoutConversion()
	}
	if over == nil {
		return rest.RESTClientFor(config)
	}
	return rest.RESTClientForConfigAndClient(config, over)
}

// Objects are the objects of a resource. It has the methods of client-go's typed clients that are
// used, so that tests can use client-go's fakes.
type Objects[O, L runtime.Object] struct {
	client              rest.Interface
	namespace, resource string
}

// Pods returns the pods of a namespace.
func Pods(core rest.Interface, namespace string) Objects[*corev1.Pod, *corev1.PodList] {
	return Objects[*corev1.Pod, *corev1.PodList]{core, namespace, "pods"}
}

// Nodes returns the nodes of the cluster.
func Nodes(core rest.Interface) Objects[*corev1.Node, *corev1.NodeList] {
	return Objects[*corev1.Node, *corev1.NodeList]{core, "", "nodes"}
}

// Events returns the Events of a namespace.
func Events(events rest.Interface, namespace string) Objects[*eventsv1.Event, *eventsv1.EventList] {
	return Objects[*eventsv1.Event, *eventsv1.EventList]{events, namespace, "events"}
}

// Leases returns the Leases of a namespace.
func Leases(coordination rest.Interface, namespace string) Objects[*coordinationv1.Lease, *coordinationv1.LeaseList] {
	return Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]{coordination, namespace, "leases"}
}

// TokenReviews returns the reviews of tokens. They cannot be listed.
func TokenReviews(authentication rest.Interface) Objects[*authenticationv1.TokenReview, runtime.Object] {
	return Objects[*authenticationv1.TokenReview, runtime.Object]{authentication, "", "tokenreviews"}
}

// SubjectAccessReviews returns the reviews of rights. They cannot be listed.
func SubjectAccessReviews(authorization rest.Interface) Objects[*authorizationv1.SubjectAccessReview, runtime.Object] {
	return Objects[*authorizationv1.SubjectAccessReview, runtime.Object]{authorization, "", "subjectaccessreviews"}
}

// Get returns the object with this name.
func (r Objects[O, L]) Get(ctx context.Context, name string, o metav1.GetOptions) (O, error) {
	return do[O](ctx, r.at(r.client.Get()).Name(name).VersionedParams(&o, metav1.ParameterCodec))
}

// List returns the objects that the options select.
func (r Objects[O, L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	return do[L](ctx, r.at(r.client.Get()).VersionedParams(&o, metav1.ParameterCodec))
}

// Create creates an object and returns it as the API server has answered.
func (r Objects[O, L]) Create(ctx context.Context, object O, o metav1.CreateOptions) (O, error) {
	return do[O](ctx, r.at(r.client.Post()).VersionedParams(&o, metav1.ParameterCodec).Body(object))
}

// Update replaces an object by one with its name and version.
func (r Objects[O, L]) Update(ctx context.Context, object O, o metav1.UpdateOptions) (O, error) {
	var none O
	named, err := meta.Accessor(object)
	if err != nil {
		return none, err
	}
	return do[O](ctx, r.at(r.client.Put()).Name(named.GetName()).VersionedParams(&o, metav1.ParameterCodec).Body(object))
}

// Patch changes an object, or one of its subresources.
func (r Objects[O, L]) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, o metav1.PatchOptions, subresources ...string) (O, error) {
	return do[O](ctx, r.at(r.client.Patch(kind)).Name(name).SubResource(subresources...).VersionedParams(&o, metav1.ParameterCodec).Body(patch))
}

// Watch watches the objects that the options select.
func (r Objects[O, L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return r.at(r.client.Get()).VersionedParams(&o, metav1.ParameterCodec).Timeout(timeout).Watch(ctx)
}

// Source lists and watches objects, like Objects and client-go's typed clients.
type Source[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// ListWatch returns the objects of source that the selectors of options select, for reflectors.
func ListWatch[L runtime.Object](source Source[L], selecting metav1.ListOptions) cache.ListerWatcher {
	selected := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = selecting.LabelSelector, selecting.FieldSelector
		return o
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return source.List(ctx, selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return source.Watch(ctx, selected(o))
		},
	}, source)
}

func (r Objects[O, L]) at(request *rest.Request) *rest.Request {
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.resource)
}

func do[O runtime.Object](ctx context.Context, request *rest.Request) (O, error) {
	var none O
	got, err := request.Do(ctx).Get()
	if err != nil {
		return none, err
	}
	o, ok := got.(O)
	if !ok {
		return none, fmt.Errorf("the API server answered with a %T in place of a %T", got, none)
	}
	return o, nil
}
