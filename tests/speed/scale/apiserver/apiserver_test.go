package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

func pod(name, label string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Labels: map[string]string{"l": label}}}
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// mirror is a client's store.
type mirror struct {
	cache.Store
	mu       sync.Mutex
	replaced int
}

func (m *mirror) Replace(all []any, version string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replaced++
	return m.Store.Replace(all, version)
}

// until waits until the store has exactly these objects.
func (m *mirror) until(t *testing.T, want string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		objects := map[string]bool{}
		for _, o := range m.List() {
			o := o.(Object)
			objects[fmt.Sprint(o.GetName(), "=", o.GetLabels()["l"])] = true
		}
		if got = strings.Join(slices.Sorted(maps.Keys(objects)), " "); got == want {
			return
		}
	}
	t.Fatalf("the client has %q, want %q", got, want)
}

// follow starts a client.
func follow(t *testing.T, url, resource string, example runtime.Object, selector fields.Selector) *mirror {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: contentType}})
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), resource, "", selector)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), example, m, cache.ReflectorOptions{}).RunWithContext(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

// newServer returns a Server and its address.
func newServer(t *testing.T, streaming bool) (*Server, string) {
	s := New()
	s.Streaming = streaming
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s, web.URL
}

func put(t *testing.T, s *Server, objects ...Object) {
	t.Helper()
	for _, o := range objects {
		if _, err := s.Put(o); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClientsFollowTheServer(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprintf("streaming=%v", streaming), func(t *testing.T) {
			s, url := newServer(t, streaming)
			put(t, s, pod("a", "1"), pod("b", "1"), node("a"), node("b"))
			pods := follow(t, url, "pods", &corev1.Pod{}, fields.Everything())
			own := follow(t, url, "nodes", &corev1.Node{}, fields.OneTermEqualSelector(metav1.ObjectNameField, "b"))
			pods.until(t, "a=1 b=1")
			own.until(t, "b=")
			put(t, s, pod("a", "2"), pod("c", "1"), node("c"))
			if _, err := s.Delete(pod("b", "1")); err != nil {
				t.Fatal(err)
			}
			pods.until(t, "a=2 c=1")
			own.until(t, "b=")
			var listed []string
			for _, l := range s.Client().Lists() {
				listed = append(listed, fmt.Sprint(l.Kind, l.Objects))
			}
			slices.Sort(listed)

			if want := []string{"Node1", "Pod2"}; !slices.Equal(listed, want) {
				t.Errorf("lists %v, want %v", listed, want)
			}
			if pods.replaced != 1 {
				t.Errorf("the client listed pods %d times, want once", pods.replaced)
			}
		})
	}
}

func TestWithoutPods(t *testing.T) {
	s, url := newServer(t, true)
	put(t, s, pod("a", "1"), node("a"))
	pods := follow(t, url+WithoutPods, "pods", &corev1.Pod{}, fields.Everything())
	nodes := follow(t, url+WithoutPods, "nodes", &corev1.Node{}, fields.Everything())
	nodes.until(t, "a=")
	for s.Client().Watches() < 2 {
		time.Sleep(time.Millisecond)
	}
	pods.until(t, "")
}

func TestHistoryIsBounded(t *testing.T) {
	s, url := newServer(t, true)
	for range 3 * historyLen {
		put(t, s, node("a"))
	}
	call := &call{Server: s, kind: s.kinds["/api/v1/nodes"]}
	for _, tt := range []struct {
		version uint64
		want    bool
	}{{1, false}, {s.version - historyLen, true}, {s.version, true}} {
		t.Run(fmt.Sprintf("version %d", tt.version), func(t *testing.T) {
			events, _, ok := call.eventsSince(tt.version)
			if ok != tt.want || ok && uint64(len(events)) != s.version-tt.version {
				t.Errorf("from version %d of %d: %v with %d events, want %v", tt.version, s.version, ok, len(events), tt.want)
			}
		})
	}
	response, err := http.Get(url + "/api/v1/nodes?watch=true&resourceVersion=1")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()

	if response.StatusCode != http.StatusGone {
		t.Errorf("a watch from version 1: status %d, want 410", response.StatusCode)
	}
}
