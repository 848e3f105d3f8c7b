// Package cluster is as much of a Kubernetes cluster as conformance suites see:
// an API server that keeps their objects in memory, pods for their StatefulSets,
// and the exec by which they open connections from pods. It owns what a client
// of the API sees. The Network decides about connections.
package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Network is what pods are attached to and where policies are enforced. Apply is
// called once at a time; Connect may be called at any time.
type Network interface {
	// Nodes returns the nodes of the cluster, which never change.
	Nodes() []*corev1.Node
	// Apply makes the network what objects say. Their pods have addresses, those
	// of their nodes if they share its network. Not more than one object differs
	// from the call before. Policies are in force when it returns.
	Apply(ctx context.Context, objects Objects) error
	// Connect makes one attempt. An error is for one that could not be made.
	Connect(ctx context.Context, attempt Attempt) (netpol.Outcome, error)
}

// Attempt is an attempt of a pod to open a connection.
type Attempt struct {
	From     string // the pod, "namespace/name"
	Protocol corev1.Protocol
	To       netip.AddrPort
	// Timeout is how long the attempt waits for an answer.
	Timeout time.Duration
}

// Config configures the cluster.
type Config struct {
	Network Network
	// Family is that of the first address of pods, which is the one that suites
	// know.
	Family corev1.IPFamily
	// Release is the one of the network policy API whose definitions the cluster has.
	Release string
	// HostNetworkApart lets host-network pods run on other nodes than the pods of
	// the same ordinal, and not beside them.
	HostNetworkApart bool
}

// Server is the API server. A change of objects has come into force when it
// answers: suites that try a connection once, at once, see what it did.
type Server struct {
	cfg     Config
	objects dynamic.Interface
	handler http.Handler

	changing sync.Mutex // held for a change, until it is in force
	pods     int        // created so far
}

// New returns the API server of a cluster that has nodes and nothing else.
func New(ctx context.Context, cfg Config) (*Server, error) {
	lists := map[schema.GroupVersionResource]string{}
	for _, k := range kinds {
		lists[k.GroupVersionResource] = k.name + "List"
	}
	s := &Server{cfg: cfg, objects: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)}
	if err := s.define(ctx); err != nil {
		return nil, err
	}
	for _, node := range cfg.Network.Nodes() {
		if err := s.add(ctx, nodes, node); err != nil {
			return nil, err
		}
	}
	s.handler = s.routes()
	return s, s.apply(ctx)
}

// define creates the definition of ClusterNetworkPolicy. Suites read its release and channel.
func (s *Server) define(ctx context.Context) error {
	return s.add(ctx, definitions, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "clusternetworkpolicies.policy.networking.k8s.io",
		Annotations: map[string]string{
			"policy.networking.k8s.io/bundle-version": s.cfg.Release, "policy.networking.k8s.io/channel": "experimental",
		},
	}})
}

// ServeHTTP answers a client of the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api", serveVersions)
	mux.HandleFunc("GET /apis", serveGroups)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/exec", s.serveExec)
	for _, prefix := range []string{"/api/{version}", "/apis/{group}/{version}"} {
		mux.HandleFunc("GET "+prefix, serveResources)
		for _, scope := range []string{"", "/namespaces/{namespace}"} {
			mux.HandleFunc(prefix+scope+"/{resource}", s.serveObjects)
			mux.HandleFunc(prefix+scope+"/{resource}/{name}", s.serveObjects)
		}
	}
	return mux
}

// Objects are the objects that decide about connections.
type Objects struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	Policies   []compile.Object
}

// add adds an object. An unknown field is an error.
func (o *Objects) add(item *unstructured.Unstructured) error {
	all := append([]*compile.Kind{compile.KindNamespace, compile.KindPod, compile.KindNode}, compile.Kinds...)
	i := slices.IndexFunc(all, func(k *compile.Kind) bool { return k.Name == item.GetKind() })
	object := all[i].New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(item.Object, object, true); err != nil {
		return fmt.Errorf("%s %s: %w", item.GetKind(), item.GetName(), err)
	}
	switch object := object.(type) {
	case *corev1.Namespace:
		o.Namespaces = append(o.Namespaces, object)
	case *corev1.Pod:
		o.Pods = append(o.Pods, object)
	case *corev1.Node:
		o.Nodes = append(o.Nodes, object)
	default:
		o.Policies = append(o.Policies, object)
	}
	return nil
}

// apply applies the objects to the network.
func (s *Server) apply(ctx context.Context) error {
	var objects Objects
	for _, kind := range kinds {
		if kind == statefulSets || kind == definitions {
			continue // a StatefulSet is nothing but its pods
		}
		list, err := s.of(kind, metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := objects.add(&list.Items[i]); err != nil {
				return err
			}
		}
	}
	return s.cfg.Network.Apply(ctx, objects)
}
