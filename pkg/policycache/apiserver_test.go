package policycache

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// event is what a watch is told, and when.
type event struct {
	version int
	Type    watch.EventType `json:"type"`
	Object  any             `json:"object"`
}

// server is an API server of pods. Every other kind is there and empty. It
// knows what the fake clientset does not: versions, history that is compacted,
// connections that break, and streamed lists where streaming is set.
type server struct {
	streaming bool

	mu        sync.Mutex
	version   int
	compacted int // no watch can start before this version
	pods      map[string]*corev1.Pod
	history   []event
	changed   chan struct{} // closed at every change
	broken    chan struct{} // closed to end every watch
	refusals  int           // lists and watches of pods to be refused
}

func newServer(t *testing.T, streaming bool) (*server, kubernetes.Interface) {
	s := &server{streaming: streaming, version: 10, pods: map[string]*corev1.Pod{}, changed: make(chan struct{}), broken: make(chan struct{})}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: web.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

// change applies events to the pods in one step.
func (s *server) change(types []watch.EventType, pods ...*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range pods {
		s.version++
		p.ResourceVersion = strconv.Itoa(s.version)
		s.pods[p.Name] = p
		if types[i] == watch.Deleted {
			delete(s.pods, p.Name)
		}
		s.history = append(s.history, event{s.version, types[i], p})
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// cut ends all watches and refuses some of the calls that follow. With compact,
// no watch can go on from where it was.
func (s *server) cut(refusals int, compact bool, meanwhile func()) {
	s.mu.Lock()
	s.refusals = refusals
	if compact {
		s.compacted = math.MaxInt
	}
	close(s.broken)
	s.broken = make(chan struct{})
	s.mu.Unlock()
	meanwhile()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = min(s.compacted, s.version)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	isPods := strings.HasSuffix(r.URL.Path, "/pods")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case isPods && s.refusals > 0:
		s.refusals--
		refuse(w, apierrors.NewInternalError(http.ErrAbortHandler))
	case q.Get("watch") == "":
		s.list(w, isPods)
	case q.Get("sendInitialEvents") != "" && !s.streaming:
		refuse(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
	default:
		from, _ := strconv.Atoi(q.Get("resourceVersion"))
		s.watch(w, r, isPods, from, q.Get("sendInitialEvents") != "")
	}
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.WriteHeader(int(err.ErrStatus.Code))
	_ = json.NewEncoder(w).Encode(err.ErrStatus)
}

func (s *server) list(w http.ResponseWriter, isPods bool) {
	list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}, Items: []corev1.Pod{}}
	if isPods {
		for _, p := range s.pods {
			list.Items = append(list.Items, *p)
		}
	}
	_ = json.NewEncoder(w).Encode(&list)
}

// watch is called with s.mu held and holds it when it does not wait.
func (s *server) watch(w http.ResponseWriter, r *http.Request, isPods bool, from int, streamed bool) {
	if from > 0 && from < s.compacted && isPods {
		refuse(w, apierrors.NewResourceExpired("too old"))
		return
	}
	send := func(typ watch.EventType, o any) {
		_ = json.NewEncoder(w).Encode(event{Type: typ, Object: o})
	}
	if streamed {
		if isPods {
			for _, p := range s.pods {
				send(watch.Added, p)
			}
		}
		send(watch.Bookmark, bookmark(r.URL.Path, s.version))
		from = s.version
	}
	broken := s.broken
	for {
		for _, e := range s.history {
			if isPods && e.version > from {
				from = e.version
				send(e.Type, e.Object)
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
			if isPods && from < s.compacted {
				send(watch.Error, expired())
			}
			return
		case <-r.Context().Done():
			s.mu.Lock()
			return
		}
	}
}

func expired() metav1.Status {
	status := apierrors.NewResourceExpired("too old").ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return status
}

// bookmark ends a streamed list.
func bookmark(path string, version int) any {
	m := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "pods":
		m.Kind = "Pod"
	case "nodes":
		m.Kind = "Node"
	case "namespaces":
		m.Kind = "Namespace"
	case "networkpolicies":
		m.Kind, m.APIVersion = "NetworkPolicy", "networking.k8s.io/v1"
	}
	return m
}

func served(name, ip string) *corev1.Pod {
	p := pod(name, ip)
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return p
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

// TestNoSnapshotLacksAnObjectWhileTheServerIsAway breaks watches, refuses
// calls, and forgets history, so that the informer has to list again. Pods that
// were there all the time are in every snapshot.
func TestNoSnapshotLacksAnObjectWhileTheServerIsAway(t *testing.T) {
	for name, streaming := range map[string]bool{"lists": false, "streamed lists": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := newServer(t, streaming)
			added, deleted := watch.Added, watch.Deleted
			s.change([]watch.EventType{added, added, added}, served("a", "10.0.0.1"), served("b", "10.0.0.2"), served("c", "10.0.0.3"))
			h := start(t, NewAPIServer(client), 0)
			h.until(t, "pod/a=10.0.0.1 pod/b=10.0.0.2 pod/c=10.0.0.3")

			s.cut(0, false, func() { s.change([]watch.EventType{added}, served("d", "10.0.0.4")) })
			h.until(t, "pod/a=10.0.0.1 pod/b=10.0.0.2 pod/c=10.0.0.3 pod/d=10.0.0.4")

			s.cut(1, true, func() {
				s.change([]watch.EventType{deleted, added, deleted, added},
					served("c", "10.0.0.3"), served("e", "10.0.0.5"), served("d", "10.0.0.4"), served("d", "10.0.0.6"))
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
