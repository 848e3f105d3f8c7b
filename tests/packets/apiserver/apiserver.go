// Package apiserver is a fake API server of a large cluster. It serves lists and watches to
// a node agent like a real one: in protobuf, with streamed lists, one frame for each event,
// and with requests for a namespace, for labels and for fields. Objects are kept encoded,
// so that serving them costs little compared with what is measured. It stores nothing that
// clients send, and counts what it sends.
//
// The fakes of pkg/cluster/clusterwatch (faults, compaction, no network) and of
// pkg/status/statustest (writes and field managers, JSON) keep objects decoded and share
// only the paths of requests with this one.
package apiserver

import (
	"bytes"
	"fmt"
	"net/http"
	pathpkg "path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// kindsByPath returns the served kinds by the last part of their paths.
func kindsByPath() map[string]*kind {
	return map[string]*kind{
		"/api/v1/namespaces": newKind(&corev1.Namespace{}, &corev1.NamespaceList{}),
		"/api/v1/pods":       newKind(&corev1.Pod{}, &corev1.PodList{}),
		"/api/v1/nodes":      newKind(&corev1.Node{}, &corev1.NodeList{}),
		"/api/v1/services":   newKind(&corev1.Service{}, &corev1.ServiceList{}),
		"/apis/discovery.k8s.io/v1/endpointslices":   newKind(&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}),
		"/apis/networking.k8s.io/v1/networkpolicies": newKind(&networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}),
	}
}

// historyLen is how many events of a kind are kept for watches that begin later.
const historyLen = 1 << 14

// Server serves the objects it holds. Its methods may be called from any goroutine.
type Server struct {
	// Streaming enables streamed lists, as in API servers since Kubernetes 1.34. Set it before
	// the first request.
	Streaming bool

	mu      sync.Mutex
	version uint64
	kinds   map[string]*kind
	byType  map[reflect.Type]*kind
	client  Client
}

// Client counts what was sent to all clients.
type Client struct {
	sent    atomic.Int64 // bytes of bodies
	events  atomic.Int64 // of watches, without those of lists
	watches atomic.Int64 // open watches

	mu    sync.Mutex
	lists []List
}

// List is a list that was sent completely.
type List struct {
	Kind    string
	Objects int
	Bytes   int64
	Began   time.Time
	Ended   time.Time // when its last byte was written to the connection
}

// kind holds the encoded objects of one kind.
type kind struct {
	example, list runtime.Object
	objects       map[string]object // by namespace/name
	history       []event
	dropped       uint64        // history has no event up to this version
	changed       chan struct{} // closed at every change
}

// object is an encoded object with the attributes by which requests select it.
type object struct {
	attributes
	encoded []byte
}

// event is a change of an object. A zero object means that it did not or does not exist.
type event struct {
	version  uint64
	old, now object
	frame    []byte // for clients that select both, or the only one
}

func newKind(example, list runtime.Object) *kind {
	return &kind{example: example, list: list, objects: map[string]object{}, changed: make(chan struct{})}
}

// New returns an empty Server.
func New() *Server {
	s := &Server{Streaming: true, version: 1, kinds: kindsByPath(), byType: map[reflect.Type]*kind{}}
	for _, k := range s.kinds {
		s.byType[reflect.TypeOf(k.example)] = k
	}
	return s
}

// Put adds or replaces an object, sets its version, and returns the time when watches could
// see it.
func (s *Server) Put(o Object) (time.Time, error) { return s.change(watch.Modified, o) }

// Delete removes an object by name and returns the time when watches could see it.
func (s *Server) Delete(o Object) (time.Time, error) { return s.change(watch.Deleted, o) }

func (s *Server) change(typ watch.EventType, o Object) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.byType[reflect.TypeOf(o)]
	if k == nil {
		return time.Time{}, fmt.Errorf("kind %T is not served", o)
	}
	s.version++
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	encoded, err := encode(o)
	if err != nil {
		return time.Time{}, err
	}
	name := o.GetNamespace() + "/" + o.GetName()
	e := event{version: s.version, old: k.objects[name], now: object{attributesOf(o), encoded}}
	switch {
	case typ == watch.Deleted:
		e.old, e.now = e.now, object{}
		delete(k.objects, name)
	case e.old.encoded == nil:
		typ = watch.Added
		fallthrough
	default:
		k.objects[name] = e.now
	}
	e.frame = frame(typ, encoded)
	if len(k.history) >= 2*historyLen {
		k.dropped = k.history[historyLen-1].version
		k.history = slices.Clone(k.history[historyLen:])
	}
	k.history = append(k.history, e)
	visible := time.Now()
	close(k.changed)
	k.changed = make(chan struct{})
	return visible, nil
}

// Client returns what the clients have asked for and were sent.
func (s *Server) Client() *Client { return &s.client }

// Sent returns the number of bytes sent to the client.
func (c *Client) Sent() int64 { return c.sent.Load() }

// Events returns the number of watch events sent to the client, without streamed lists.
func (c *Client) Events() int64 { return c.events.Load() }

// Watches returns the number of open watches.
func (c *Client) Watches() int { return int(c.watches.Load()) }

// Lists returns the sent lists, streamed or not.
func (c *Client) Lists() []List {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lists)
}

// WithoutPods is the path prefix of the same cluster without its pods.
const WithoutPods = "/without-pods"

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, bare := strings.CutPrefix(r.URL.Path, WithoutPods)
	path, namespace := cutNamespace(path)
	k := s.kinds[path]
	switch {
	case r.Method != http.MethodGet:
		http.NotFound(w, r)
		return
	case k == nil:
		s.serveOne(w, r, path, namespace)
		return
	}
	if bare && path == "/api/v1/pods" {
		k = newKind(k.example, k.list)
	}
	query := r.URL.Query()
	selected, err := newSelection(namespace, query.Get("fieldSelector"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := &call{Server: s, client: &s.client, kind: k, w: w, r: r, selected: selected}
	switch streamed := query.Get("sendInitialEvents") == "true"; {
	case query.Get("watch") == "":
		c.sendList()
	case streamed && !s.Streaming:
		http.Error(w, "sendInitialEvents is not served", http.StatusUnprocessableEntity)
	case streamed:
		c.watch(c.streamList())
	default:
		from, err := strconv.ParseUint(query.Get("resourceVersion"), 10, 64)
		if err != nil {
			http.Error(w, "resourceVersion: "+err.Error(), http.StatusBadRequest)
			return
		}
		c.watch(from)
	}
}

// serveOne serves the object that the last part of the path names.
func (s *Server) serveOne(w http.ResponseWriter, r *http.Request, path, namespace string) {
	folder, name := pathpkg.Split(path)
	k := s.kinds[pathpkg.Clean(folder)]
	if k == nil {
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	encoded := k.objects[namespace+"/"+name].encoded
	s.mu.Unlock()
	if encoded == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(encoded)
}

// cutNamespace returns the path without a namespace, and the namespace if there is one.
func cutNamespace(path string) (all, namespace string) {
	const part = "/namespaces/"
	before, rest, found := strings.Cut(path, part)
	namespace, resource, ok := strings.Cut(rest, "/")
	if !found || !ok {
		return path, ""
	}
	return before + "/" + resource, namespace
}

var encoder = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encode returns o in the encoding of events.
func encode(o runtime.Object) ([]byte, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	var b bytes.Buffer
	err = encoder.Encode(o, &b)
	return b.Bytes(), err
}

// frame returns an event about an encoded object as it is sent.
func frame(typ watch.EventType, encoded []byte) []byte {
	e := metav1.WatchEvent{Type: string(typ), Object: runtime.RawExtension{Raw: encoded}}
	body, err := e.Marshal()
	if err != nil {
		panic(err) // it has no reason to fail
	}
	var b bytes.Buffer
	_, _ = protobuf.LengthDelimitedFramer.NewFrameWriter(&b).Write(body)
	return b.Bytes()
}
