package clusterwatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiconn"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// event is an event of a watch, with its time.
type event struct {
	resource string
	version  int
	Type     watch.EventType `json:"type"`
	Object   runtime.Object  `json:"object"`
}

// server is an API server. It knows what the fake clientset does not: versions,
// history that is compacted, connections that break, kinds that are not served,
// and streamed lists where streaming is set.
type server struct {
	streaming bool

	mu        sync.Mutex
	version   int
	compacted int                          // no watch can start before this version
	objects   map[string]map[string]object // by resource and name
	history   []event
	changed   chan struct{}  // closed at every change
	broken    chan struct{}  // closed to end every watch
	refusals  int            // lists and watches of pods to be refused
	answers   map[string]int // resources that get this answer, and no other
	asked     map[string]int // lists and watches of each resource
	whole     map[string]int // lists of each resource that were answered, streamed or not
	away      error          // what every request in a bubble fails with, if any
	breaking  bool           // watches end as soon as they begin
	failing   bool           // and with an error
	// versions are the served versions of ClusterNetworkPolicy, and discovered those in
	// discovery, if they differ.
	versions, discovered []string
}

func newServer(streaming bool) *server {
	return &server{
		streaming: streaming,
		version:   10,
		objects:   map[string]map[string]object{},
		changed:   make(chan struct{}),
		broken:    make(chan struct{}),
		answers:   map[string]int{},
		asked:     map[string]int{},
		whole:     map[string]int{},
		versions:  []string{"v1alpha2", "v1beta1"},
	}
}

// serve ends all watches, and serves ClusterNetworkPolicy only in these versions.
func (s *server) serve(versions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions = versions
	s.breakWatches()
}

// discover makes discovery report these versions of ClusterNetworkPolicy, or the served ones if
// there are none.
func (s *server) discover(versions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discovered = versions
}

// serveDiscovery answers a request for the versions of the group or for the resources of one.
func (s *server) serveDiscovery(w http.ResponseWriter, asked schema.GroupVersion) {
	versions := s.versions
	if s.discovered != nil {
		versions = s.discovered
	}
	if asked.Group == "" {
		group := metav1.APIGroup{Name: v1beta1.GroupName}
		for _, v := range append(versions, "v1alpha1") {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group.Name + "/" + v, Version: v})
		}
		_ = json.NewEncoder(w).Encode(group)
		return
	}
	var list metav1.APIResourceList
	for _, k := range append(allKinds, compile.KindCIDRGroup) {
		in := k.Resource.GroupVersion() == asked
		if k == compile.KindClusterNetworkPolicy {
			in = slices.Contains(versions, asked.Version)
		}
		if status, fixed := s.answers[k.Resource.Resource]; in && !(fixed && status == http.StatusNotFound) {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Resource.Resource})
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

// versioned writes its input with the version of the path.
type versioned struct {
	http.ResponseWriter
	version string
}

func (v versioned) Write(p []byte) (int, error) {
	_, err := v.ResponseWriter.Write(bytes.ReplaceAll(p, []byte(v1beta1.GroupVersion.String()), []byte(v1beta1.GroupName+"/"+v.version)))
	return len(p), err
}

func (v versioned) Flush() { v.ResponseWriter.(http.Flusher).Flush() }

// source returns a Source that talks to the server with config.
func (s *server) source(t *testing.T, config rest.Config) *APIServer {
	over, err := rest.HTTPClientFor(&config)
	if err != nil {
		t.Fatal(err)
	}
	var connections apiconn.Connections
	source, err := newAPIServer(&config, over, over, &connections)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// overNetwork returns a Source that talks to the server through a socket.
func (s *server) overNetwork(t *testing.T) *APIServer {
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s.source(t, rest.Config{Host: web.URL})
}

// inBubble returns a Source that talks to the server without a network, so that the clock of
// a bubble can advance.
func (s *server) inBubble(t *testing.T) *APIServer {
	return s.source(t, rest.Config{Host: "http://server", Transport: s})
}

// change applies events to objects in one step.
func (s *server) change(types []watch.EventType, objects ...object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range objects {
		s.version++
		o.SetResourceVersion(strconv.Itoa(s.version))
		resource, group := resourceOf(o).Resource, resourceOf(o).GroupVersion()
		o.GetObjectKind().SetGroupVersionKind(group.WithKind(reflect.TypeOf(o).Elem().Name()))
		if s.objects[resource] == nil {
			s.objects[resource] = map[string]object{}
		}
		s.objects[resource][o.GetName()] = o
		if types[i] == watch.Deleted {
			delete(s.objects[resource], o.GetName())
		}
		s.history = append(s.history, event{resource, s.version, types[i], o})
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// cut ends all watches and refuses some of the following calls. With compact, no watch can
// resume.
func (s *server) cut(refusals int, compact bool, meanwhile func()) {
	s.mu.Lock()
	s.refusals = refusals
	if compact {
		s.compacted = math.MaxInt
	}
	s.breakWatches()
	s.mu.Unlock()
	meanwhile()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = min(s.compacted, s.version)
}

// leave ends all watches, and fails each request in a bubble with err, if it is not nil.
func (s *server) leave(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = err
	s.breakWatches()
}

// restore replaces all objects by these, at this version, and breaks all watches.
func (s *server) restore(version int, objects ...object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.history, s.objects = version, nil, map[string]map[string]object{}
	for _, o := range objects {
		resource := resourceOf(o).Resource
		if s.objects[resource] == nil {
			s.objects[resource] = map[string]object{}
		}
		s.objects[resource][o.GetName()] = o
	}
	s.breakWatches()
}

// breakEach ends all watches, and from now on each new one at once, with or without an error.
func (s *server) breakEach(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaking, s.failing = true, failing
	s.breakWatches()
}

// breakWatches is called with s.mu held.
func (s *server) breakWatches() {
	close(s.broken)
	s.broken = make(chan struct{})
}

// answer ends all watches, and answers each request for the resource with this status; 200
// restores normal answers.
func (s *server) answer(resource string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[resource] = status
	s.breakWatches()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	resource := path.Base(r.URL.Path)
	at := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // "apis", the group, the version, the resource
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(at) < 4 && at[0] == "apis" {
		s.serveDiscovery(w, schema.GroupVersion{Group: strings.Join(at[1:max(1, len(at)-1)], ""), Version: resource})
		return
	}
	s.asked[resource]++
	status, fixed := s.answers[resource]
	if resource == cnps {
		w = versioned{w, at[2]}
		if !slices.Contains(s.versions, at[2]) {
			status, fixed = http.StatusNotFound, true
		}
	}
	switch {
	case len(at) == 1: // "api"
		http.Error(w, "", http.StatusNotFound)
	case fixed && status != http.StatusOK:
		http.Error(w, http.StatusText(status), status)
	case resource == "pods" && s.refusals > 0:
		s.refusals--
		refuse(w, apierrors.NewInternalError(http.ErrAbortHandler))
	case s.version < version(q.Get("resourceVersion")) && (q.Get("watch") == "" || q.Get("sendInitialEvents") != ""):
		refuse(w, tooLarge())
	case q.Get("watch") == "":
		if q.Get("limit") != "1" {
			s.whole[resource]++
		}
		s.list(w, resource)
	case q.Get("sendInitialEvents") != "" && !s.streaming:
		refuse(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
	default:
		if q.Get("sendInitialEvents") != "" {
			s.whole[resource]++
		}
		s.watch(w, r, resource, version(q.Get("resourceVersion")), q.Get("sendInitialEvents") != "")
	}
}

// version returns a resource version, 0 for none.
func version(s string) int {
	v, _ := strconv.Atoi(s)
	return v
}

// tooLarge is the answer to a request for a future version.
func tooLarge() *apierrors.StatusError {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	w.WriteHeader(int(err.ErrStatus.Code))
	_ = json.NewEncoder(w).Encode(status(err))
}

// RoundTrip serves a request as a transport.
func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	away := s.away
	if away != nil {
		s.asked[path.Base(r.URL.Path)]++
	}
	s.mu.Unlock()
	if away != nil {
		return nil, away
	}
	ctx, cancel := context.WithCancel(r.Context())
	w := &answer{header: http.Header{}, status: make(chan int, 1), sent: make(chan []byte, 1<<10)}
	go func() {
		s.ServeHTTP(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		close(w.sent)
	}()
	return &http.Response{StatusCode: <-w.status, Header: w.header, Body: &connection{ctx, cancel, w.sent, nil}, Request: r}, nil
}

// answer is a response that is being written.
type answer struct {
	header http.Header
	status chan int // takes the first status
	sent   chan []byte
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	select {
	case a.status <- status:
	default:
	}
}

// Write does not wait for the client to read: the server is locked meanwhile.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	select {
	case a.sent <- bytes.Clone(p):
		return len(p), nil
	default:
		return 0, io.ErrShortBuffer
	}
}

func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

// connection is the client's side of a response.
type connection struct {
	ctx    context.Context
	hangUp func()
	sent   <-chan []byte
	rest   []byte // sent, and not read yet
}

func (c *connection) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		var open bool
		select {
		case c.rest, open = <-c.sent:
			if !open {
				return 0, io.EOF
			}
		case <-c.ctx.Done():
			return 0, c.ctx.Err()
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *connection) Close() error {
	c.hangUp()
	return nil
}

// listType is the type of a list of a resource.
func listType(resource string) metav1.TypeMeta {
	for _, k := range append([]*compile.Kind{compile.KindNamespace, compile.KindNode, compile.KindCIDRGroup}, compile.Kinds...) {
		if k.Resource.Resource == resource {
			return metav1.TypeMeta{APIVersion: k.Resource.GroupVersion().String(), Kind: k.Name + "List"}
		}
	}
	panic(resource)
}

func (s *server) list(w http.ResponseWriter, resource string) {
	meta, objects := metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}, s.objects[resource]
	if resource != "pods" {
		_ = json.NewEncoder(w).Encode(struct {
			metav1.TypeMeta
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []object        `json:"items"`
		}{listType(resource), meta, slices.Collect(maps.Values(objects))})
		return
	}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: meta}
	for _, o := range objects {
		list.Items = append(list.Items, *o.(*corev1.Pod))
	}
	_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, w)
}

// send sends an event: pods as protobuf, their only accepted encoding, and other kinds as
// JSON.
func send(w io.Writer, resource string, typ watch.EventType, o runtime.Object) {
	if resource != "pods" {
		_ = json.NewEncoder(w).Encode(event{Type: typ, Object: o})
		return
	}
	var object bytes.Buffer
	_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &object)
	_ = protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme).Encode(
		&metav1.WatchEvent{Type: string(typ), Object: runtime.RawExtension{Raw: object.Bytes()}},
		protobuf.LengthDelimitedFramer.NewFrameWriter(w))
}

// watch is called with s.mu held, and releases it only while it waits.
func (s *server) watch(w http.ResponseWriter, r *http.Request, resource string, from int, streamed bool) {
	if from > 0 && from < s.compacted {
		refuse(w, apierrors.NewResourceExpired("too old"))
		return
	}
	if streamed {
		for _, o := range s.objects[resource] {
			send(w, resource, watch.Added, o)
		}
		send(w, resource, watch.Bookmark, bookmark(resource, s.version))
		from = s.version
	}
	broken := s.broken
	if s.breaking {
		broken = make(chan struct{})
		close(broken)
	}
	for {
		for _, e := range s.history {
			if e.resource == resource && e.version > from {
				from = e.version
				send(w, resource, e.Type, e.Object)
			}
		}
		w.(http.Flusher).Flush()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
			s.mu.Lock()
		case <-broken:
			s.mu.Lock()
			switch {
			case from < s.compacted:
				send(w, resource, watch.Error, status(apierrors.NewResourceExpired("too old")))
			case s.failing:
				send(w, resource, watch.Error, status(apierrors.NewInternalError(errors.New("etcd: request timed out"))))
			}
			return
		case <-r.Context().Done():
			s.mu.Lock()
			return
		}
	}
}

// status returns the Status that a server sends for an error.
func status(err *apierrors.StatusError) *metav1.Status {
	err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &err.ErrStatus
}

// bookmark ends a streamed list.
func bookmark(resource string, version int) runtime.Object {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
	for typ, r := range resources {
		if r.Resource == resource {
			m.SetGroupVersionKind(r.GroupVersion().WithKind(typ[strings.IndexByte(typ, '.')+1:]))
		}
	}
	return m
}

// until waits for a snapshot of want and returns all that were published.
func (h *harness) until(t *testing.T, want string) []published {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		all := h.all()
		if i := slices.IndexFunc(all, func(p published) bool { return p.in == want }); i >= 0 {
			return all
		}
		select {
		case <-h.each:
		case <-h.done:
			t.Fatalf("the cache ended: %v", h.err)
		case <-deadline:
			t.Fatalf("no snapshot of %s, but %v", want, all)
		}
	}
}

// TestNoSnapshotLacksAnObjectWhileTheServerIsAway breaks watches, refuses calls, and compacts
// history, so that the Reflector must list again. Every snapshot has the pods that always
// existed.
func TestNoSnapshotLacksAnObjectWhileTheServerIsAway(t *testing.T) {
	for name, streaming := range map[string]bool{"lists": false, "streamed lists": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(streaming)
			added, deleted := watch.Added, watch.Deleted
			s.change([]watch.EventType{added, added, added}, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3"))
			h := start(t, s.overNetwork(t), 0)
			h.until(t, "pod/a=10.0.0.1 pod/b=10.0.0.2 pod/c=10.0.0.3")

			s.cut(0, false, func() { s.change([]watch.EventType{added}, pod("d", "10.0.0.4")) })
			h.until(t, "pod/a=10.0.0.1 pod/b=10.0.0.2 pod/c=10.0.0.3 pod/d=10.0.0.4")

			s.cut(1, true, func() {
				s.change([]watch.EventType{deleted, added, deleted, added},
					pod("c", "10.0.0.3"), pod("e", "10.0.0.5"), pod("d", "10.0.0.4"), pod("d", "10.0.0.6"))
			})
			all := h.until(t, "pod/a=10.0.0.1 pod/b=10.0.0.2 pod/d=10.0.0.6 pod/e=10.0.0.5")
			for _, p := range all {
				if !strings.HasPrefix(p.in, "pod/a=10.0.0.1 pod/b=10.0.0.2 ") {
					t.Errorf("a snapshot of %s lacks a or b", p.in)
				}
			}
			if got := testutil.ToFloat64(h.metrics.watchErrors.WithLabelValues(kindPod)); got < 1 {
				t.Error("the refusal was not counted")
			}
		})
	}
}

// roundTrip answers requests without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// Pods without a node have no address.
func TestPodsOfNodesAreAskedFor(t *testing.T) {
	var asked []string
	over := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.Path+" "+r.URL.Query().Get("fieldSelector"))
		return nil, io.ErrUnexpectedEOF
	})}
	source, err := newAPIServer(&rest.Config{Host: "http://server"}, over, over, &apiconn.Connections{})
	if err != nil {
		t.Fatal(err)
	}
	pods := cache.ToListerWatcherWithContext(source.Objects(compile.KindPod))
	if _, err := pods.ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list without an answer")
	}
	if _, err := pods.WatchWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a watch without an answer")
	}
	if want := "/api/v1/pods spec.nodeName!="; !slices.Equal(asked, []string{want, want}) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

// The fields of proposals reach the compiler in every version of a kind, so that a policy that needs
// a gate says which.
func TestProposedFieldsArrive(t *testing.T) {
	for _, r := range compile.KindClusterNetworkPolicy.Resources() {
		text := `{"apiVersion": "` + r.GroupVersion().String() + `", "kind": "ClusterNetworkPolicyList", "items": [{"metadata": {"name": "p"},
			"spec": {"subject": {"serviceAccounts": {"names": ["a"]}},
				"ingress": [{"from": [{"networks": ["192.0.2.0/24"]}, {"nodes": {}}, {"pods": {}}, {"serviceAccounts": {}}, {"cidrGroups": {}}]}],
				"egress": [{"to": [{"serviceAccounts": {}}, {"cidrGroups": {"names": ["a"], "selector": {}}}]}]}}]}`

		o, _, err := codecs.UniversalDeserializer().Decode([]byte(text), nil, nil)

		list, ok := o.(*proposed.ClusterNetworkPolicyList)
		if err != nil || !ok || len(list.Items) != 1 {
			t.Fatalf("%s: %T, %v", r.Version, o, err)
		}
		spec := list.Items[0].Spec
		if from := spec.Ingress[0].From; len(from[0].Networks) != 1 || from[1].Nodes == nil || from[2].Pods == nil || from[3].ServiceAccounts == nil || from[4].CIDRGroups == nil {
			t.Errorf("%s: peers %+v", r.Version, from)
		}
		if spec.Subject.ServiceAccounts == nil || spec.Egress[0].To[0].ServiceAccounts == nil || spec.Egress[0].To[1].CIDRGroups.Selector == nil {
			t.Errorf("%s: spec %+v", r.Version, spec)
		}
	}
}
