// Package statustest is a stateful fake of the API server for tests of the status
// writer: policies with server-side apply and field managers, Leases and Events.
// Clients may use it over a connection or without one, so that it also works in a
// bubble of testing/synctest. Of an object, only annotations and status.conditions
// have owners.
package statustest

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
)

// Status is how a server handles networkpolicies/status.
type Status uint8

const (
	Unserved Status = iota // Kubernetes 1.28 and later, and 1.23 and earlier
	Dropped                // 1.24 to 1.27: a write is answered with 200 and not stored
	Stored                 // 1.24 to 1.27 with the feature gate NetworkPolicyStatus
)

// Behavior is how a Server behaves. The zero value is a current server without
// faults.
type Behavior struct {
	Status Status
	// Refuse returns the error for a request, or nil to let the server handle it.
	Refuse func(Request) *metav1.Status
	// Delay is the time before each answer, except those to watches.
	Delay time.Duration
	// Down refuses connections and ends watches.
	Down bool
}

// Request is a request that the server has received.
type Request struct {
	Verb         string // get, list, watch, create, update, patch, discover
	GroupVersion string
	Resource     string // with the subresource, if any: "networkpolicies/status"; of discovery the group version
	Namespace    string
	Name         string
	Manager      string // of a patch
	DryRun       bool
	At           time.Time
	Code         int // of the answer
}

// Server is the fake API server. Its methods may be called from any goroutine.
type Server struct {
	// Policies are the NetworkPolicies, which every server serves.
	Policies

	mu       sync.Mutex
	behavior Behavior
	version  int64
	versions map[string][]string           // by resource, if not all are served
	objects  map[string]map[string]*object // by resource, if it is served, then namespace/name
	history  []change
	changed  chan struct{} // closed at each change
	requests []Request
}

// object is an API object with the owners of its items.
type object struct {
	fields map[string]any
	owners map[owner]sets.Set[string]
}

type owner struct{ manager, subresource string }

// change is an entry of the watch cache.
type change struct {
	version  int64
	resource string
	kind     string // ADDED, MODIFIED, DELETED
	object   map[string]any
}

// NewServer returns a server without objects. Of the kinds of policies it serves
// NetworkPolicy, which needs no CustomResourceDefinition.
func NewServer(b Behavior) *Server {
	s := &Server{
		behavior: b,
		version:  1,
		versions: map[string][]string{},
		objects:  map[string]map[string]*object{"networkpolicies": {}, "leases": {}, "events": {}},
		changed:  make(chan struct{}),
	}
	s.Policies = s.Of("networkpolicies")
	return s
}

// Of returns the policies of a resource.
func (s *Server) Of(resource string) Policies { return Policies{s, resource} }

// Install makes the server serve a resource, as after its CustomResourceDefinition
// was created.
func (s *Server) Install(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[resource] = map[string]*object{}
}

// ServeVersions makes the server serve a resource in these versions only, as after its
// CustomResourceDefinition was replaced. Watches in others end.
func (s *Server) ServeVersions(resource string, versions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[resource] = versions
	s.notify()
}

// Uninstall removes a resource with all its objects. Watches end without events
// about that.
func (s *Server) Uninstall(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, resource)
	s.notify()
}

// Config returns a client configuration that needs no connection. The server
// supports JSON only.
func (s *Server) Config() *rest.Config {
	return &rest.Config{
		Host: "http://statustest", Transport: s, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	}
}

// SetBehavior changes the behavior of the server. Watches end.
func (s *Server) SetBehavior(b Behavior) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behavior = b
	s.notify()
}

func (s *Server) currentBehavior() Behavior {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behavior
}

// Requests returns all requests so far for which want returns true.
func (s *Server) Requests(want func(Request) bool) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r Request) bool { return !want(r) })
}

// Writes returns the patches of policies that were answered with 200.
func (s *Server) Writes() []Request {
	return s.Requests(func(r Request) bool { return r.Verb == "patch" && !r.DryRun && r.Code == http.StatusOK })
}

// Events returns all Events, in no particular order.
func (s *Server) Events() []*unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []*unstructured.Unstructured
	for _, o := range s.objects["events"] {
		events = append(events, &unstructured.Unstructured{Object: o.render()})
	}
	return events
}

// store stores or deletes o with a new version and notifies watches.
func (s *Server) store(resource, kind string, o *object) {
	s.version++
	u := &unstructured.Unstructured{Object: o.fields}
	u.SetResourceVersion(strconv.FormatInt(s.version, 10))
	key := u.GetNamespace() + "/" + u.GetName()
	if kind == "DELETED" {
		delete(s.objects[resource], key)
	} else {
		s.objects[resource][key] = o
	}
	s.history = append(s.history, change{s.version, resource, kind, o.render()})
	s.notify()
}

func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
