// Package statustest holds a stateful fake of the API server as a status writer
// sees it: policies with server-side apply and field managers, Leases and Events.
// It can be asked over a real connection or without one, so that it also works in
// a bubble of testing/synctest. What it does not need to know it does not: only
// annotations and status.conditions have owners.
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

// Status is what a server makes of networkpolicies/status.
type Status uint8

const (
	Unserved Status = iota // Kubernetes 1.28 and later, and up to 1.23
	Dropped                // 1.24 to 1.27: a write is answered with 200, and nothing is stored
	Stored                 // the same with the feature gate NetworkPolicyStatus
)

// Personality is how a Server behaves. The zero value is a server of today.
type Personality struct {
	Status Status
	// Refuse answers a request in the server's place, unless it returns nil.
	Refuse func(Request) *metav1.Status
	// Delay passes before each answer but those of watches.
	Delay time.Duration
	// Down refuses connections and breaks watches.
	Down bool
}

// Request is a request as the server has seen it.
type Request struct {
	Verb      string // get, list, watch, create, update, patch, discover
	Resource  string // with the subresource, if any: "networkpolicies/status"; what is discovered is a group version
	Namespace string
	Name      string
	Manager   string // of a patch
	DryRun    bool
	At        time.Time
	Code      int // of the answer
}

// Server is the fake. Its methods may be called from any goroutine.
type Server struct {
	// Policies are the NetworkPolicies, which every server has.
	Policies

	mu          sync.Mutex
	personality Personality
	version     int64
	objects     map[string]map[string]*object // by resource, if it is served, then namespace/name
	history     []change
	changed     chan struct{} // closed at each change
	requests    []Request
}

// object is an object and who owns what of it.
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

// NewServer returns a server with nothing in it. Of policies it serves the one
// kind that needs no CustomResourceDefinition.
func NewServer(p Personality) *Server {
	s := &Server{
		personality: p,
		version:     1,
		objects:     map[string]map[string]*object{"networkpolicies": {}, "leases": {}, "events": {}},
		changed:     make(chan struct{}),
	}
	s.Policies = s.Of("networkpolicies")
	return s
}

// Of returns the policies of a resource.
func (s *Server) Of(resource string) Policies { return Policies{s, resource} }

// Install makes the server serve a resource, as if its CustomResourceDefinition
// were created.
func (s *Server) Install(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[resource] = map[string]*object{}
}

// Uninstall takes a resource away, with all its objects. Who watches is cut off
// before he hears of it.
func (s *Server) Uninstall(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, resource)
	s.notify()
}

// Config returns how to talk to the server without a connection. It speaks JSON
// only.
func (s *Server) Config() *rest.Config {
	return &rest.Config{
		Host: "http://statustest", Transport: s, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	}
}

// Be changes the server's behaviour. Watches end.
func (s *Server) Be(p Personality) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.personality = p
	s.notify()
}

func (s *Server) personalityNow() Personality {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.personality
}

// Requests returns all requests so far for which want is true.
func (s *Server) Requests(want func(Request) bool) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r Request) bool { return !want(r) })
}

// Writes returns the patches of policies that were answered with 200.
func (s *Server) Writes() []Request {
	return s.Requests(func(r Request) bool { return r.Verb == "patch" && !r.DryRun && r.Code == http.StatusOK })
}

// Events returns all Events, in no order.
func (s *Server) Events() []*unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []*unstructured.Unstructured
	for _, o := range s.objects["events"] {
		events = append(events, &unstructured.Unstructured{Object: o.render()})
	}
	return events
}

// store puts o in place with a new version and tells the watchers.
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
