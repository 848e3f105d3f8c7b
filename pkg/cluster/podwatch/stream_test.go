package podwatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

var serializer = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encode is how an API server sends an object.
func encode(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvks[0])
	var b bytes.Buffer
	if err := serializer.Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// frame is how an API server sends an event.
func frame(t testing.TB, typ string, object []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	raw := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	event := &metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: object}}
	if err := raw.Encode(event, protobuf.LengthDelimitedFramer.NewFrameWriter(&b)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func podList(n int) *corev1.PodList {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}}
	for i := range n {
		list.Items = append(list.Items, *realisticPod(i))
	}
	return list
}

func bookmarkOf(version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
}

// countedPods count the lists that are in progress.
type countedPods struct {
	*Pods
	lists, changes atomic.Int32
}

// podsOf returns the pods that a server serves.
func podsOf(t *testing.T, url string) *countedPods {
	t.Helper()
	client, err := rest.RESTClientFor(&rest.Config{
		Host:          url,
		APIPath:       "/api",
		ContentConfig: rest.ContentConfig{GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &countedPods{}
	p.Pods = New(client, p)
	return p
}

func (p *countedPods) Listing() (end func()) {
	p.lists.Add(1)
	return sync.OnceFunc(func() { p.lists.Add(-1) })
}

func (p *countedPods) Changed() { p.changes.Add(1) }

// server answers each request with the header at once and then with what body gives, and
// remembers the request.
func server(t *testing.T, body io.Reader) (*countedPods, *http.Request) {
	t.Helper()
	asked := &http.Request{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = *r
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, body)
	}))
	t.Cleanup(web.Close)
	return podsOf(t, web.URL), asked
}

func TestListReadsAllPods(t *testing.T) {
	for _, n := range []int{0, 1, 300} {
		t.Run(fmt.Sprintf("%d pods", n), func(t *testing.T) {
			pods, asked := server(t, bytes.NewReader(encode(t, podList(n))))
			list, err := pods.List(context.Background(), metav1.ListOptions{ResourceVersion: "5"})
			if err != nil {
				t.Fatal(err)
			}
			if asked.URL.Path != "/api/v1/pods" || asked.URL.RawQuery != "resourceVersion=5" || asked.Header.Get("Accept") != runtime.ContentTypeProtobuf {
				t.Errorf("asked for %v, accepting %s", asked.URL, asked.Header["Accept"])
			}
			if list.ResourceVersion != "7" || list.Continue != "more" || len(list.Items) != n {
				t.Errorf("%+v and %d items, want 7, more and %d", list.ListMeta, len(list.Items), n)
			}
			for i, o := range list.Items {
				if diff := difference(NewShared().Strip(realisticPod(i)), o.Pod); diff != "" {
					t.Fatalf("pod %d differs (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestAListThatIsCutShortIsAnError(t *testing.T) {
	body := encode(t, podList(2))
	end := len(body)
	for n := range body {
		if _, err := readList(bytes.NewReader(body[:n]), newDecoder(NewShared())); err == nil {
			end = min(end, n)
		}
	}
	// Behind the pods the envelope has two empty fields, which no reader needs.
	if end < len(body)-4 {
		t.Errorf("%d bytes of %d were taken for the list", end, len(body))
	}
}

func TestWatchYieldsEvents(t *testing.T) {
	first, second := realisticPod(1), realisticPod(2)
	stream := slices.Concat(
		frame(t, "ADDED", encode(t, first)), frame(t, "MODIFIED", encode(t, second)), frame(t, "DELETED", encode(t, first)),
		frame(t, "BOOKMARK", encode(t, bookmarkOf("9"))),
		frame(t, "ERROR", encode(t, &apierrors.NewResourceExpired("too old").ErrStatus)))
	body, send := io.Pipe()
	defer func() { _ = send.Close() }()
	pods, asked := server(t, body)
	w, err := pods.Watch(context.Background(), metav1.ListOptions{SendInitialEvents: ptr.To(true)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if n := pods.lists.Load(); n != 1 {
		t.Errorf("%d lists are under way, want 1", n)
	}
	go func() { _, _ = send.Write(stream) }()
	pod := func(p *corev1.Pod) *compile.Pod { return NewShared().Strip(p) }
	for _, want := range []struct {
		typ watch.EventType
		pod *compile.Pod
	}{{watch.Added, pod(first)}, {watch.Modified, pod(second)}, {watch.Deleted, pod(first)}, {watch.Bookmark, nil}} {
		e := <-w.ResultChan()
		o, ok := e.Object.(*Object)
		if e.Type != want.typ || !ok {
			t.Fatalf("got %v of a %T, want %v", e.Type, e.Object, want.typ)
		}
		if diff := difference(want.pod, o.Pod); diff != "" {
			t.Fatalf("%v: the pod differs (-want +got):\n%s", e.Type, diff)
		}
		if n := pods.lists.Load(); e.Type == watch.Bookmark && n != 0 {
			t.Errorf("%d lists are under way after the bookmark", n)
		}
		if e.Type == watch.Bookmark && (o.ResourceVersion != "9" || o.Annotations[metav1.InitialEventsAnnotationKey] != "true") {
			t.Errorf("bookmark has %+v", o.ObjectMeta)
		}
	}
	if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("got %+v, want the error of the server", e)
	}
	if e, ok := <-w.ResultChan(); ok {
		t.Errorf("got %+v after the end", e)
	}
	if got, want := pods.changes.Load(), int32(5); got != want {
		t.Errorf("%d events are counted, want %d", got, want)
	}
	if asked.URL.RawQuery != "sendInitialEvents=true&watch=true" || asked.Header.Get("Accept") != runtime.ContentTypeProtobuf {
		t.Errorf("asked for %v, accepting %s", asked.URL, asked.Header["Accept"])
	}
}

// events returns all events of a stream.
func events(stream []byte) (all []watch.Event) {
	w := newWatcher(io.NopCloser(bytes.NewReader(stream)), newDecoder(NewShared()), func() {}, func() {})
	for e := range w.ResultChan() {
		all = append(all, e)
	}
	return all
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	whole := frame(t, "ADDED", encode(t, realisticPod(1)))
	for want, stream := range map[string][]byte{
		"message of 4294967295 bytes is longer than": {0xff, 0xff, 0xff, 0xff},
		"malformed protobuf: ":                       {0, 0, 0, 2, 0x0a, 5},
		`event of type "LOST"`:                       frame(t, "LOST", encode(t, realisticPod(1))),
		"not in the protobuf encoding":               frame(t, "ADDED", []byte(`{"kind":"Pod"}`)),
		"pod ns-0000/web-00000000-00001: malformed":  frame(t, "ADDED", bytes.Replace(encode(t, realisticPod(1)), []byte("\x0a\x04http\x10"), []byte("\x0a\x7fhttp\x10"), 1)),
	} {
		t.Run(want, func(t *testing.T) {
			e := events(append(stream, whole...)) // and nothing behind it
			if len(e) != 1 || e[0].Type != watch.Error || !strings.Contains(apierrors.FromObject(e[0].Object).Error(), want) {
				t.Errorf("got %+v, want %s", e, want)
			}
		})
	}
	for n := range whole {
		if e := events(whole[:n]); len(e) > 0 {
			t.Errorf("got %+v of an event that is cut at %d of %d bytes", e, n, len(whole))
		}
	}
	if _, err := readList(strings.NewReader(`{"kind":"PodList"}`), newDecoder(NewShared())); !errors.Is(err, errNoProtobuf) {
		t.Errorf("got %v for a list in JSON", err)
	}
}

func TestARefusalIsTheServersOwn(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(encode(t, &apierrors.NewForbidden(corev1.Resource("pods"), "", nil).ErrStatus))
	}))
	defer web.Close()
	pods := podsOf(t, web.URL)
	if _, err := pods.List(context.Background(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list: got %v, want forbidden", err)
	}
	if _, err := pods.Watch(context.Background(), metav1.ListOptions{SendInitialEvents: ptr.To(true)}); !apierrors.IsForbidden(err) {
		t.Errorf("watch: got %v, want forbidden", err)
	}
	if n := pods.lists.Load(); n != 0 {
		t.Errorf("%d lists are under way after all were refused", n)
	}
}

func TestCopiesAreTheirOwn(t *testing.T) {
	list := &List{ListMeta: metav1.ListMeta{RemainingItemCount: new(int64)}, Items: []Object{{ObjectMeta: bookmarkOf("9").ObjectMeta}}}
	c := list.DeepCopyObject().(*List)
	if !reflect.DeepEqual(c, list) {
		t.Errorf("got %+v, want %+v", c, list)
	}
	c.Items[0].Annotations["a"] = "b"
	*c.RemainingItemCount = 7
	if len(list.Items[0].Annotations) != 1 || *list.RemainingItemCount != 0 {
		t.Error("the copy shares memory with the original")
	}
}

func FuzzStream(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	f.Add(encode(f, podList(2)))
	f.Add(slices.Concat(frame(f, "ADDED", encode(f, randomPod(r))), frame(f, "BOOKMARK", encode(f, bookmarkOf("9")))))
	f.Add(frame(f, "ERROR", encode(f, &apierrors.NewResourceExpired("too old").ErrStatus)))
	f.Fuzz(func(t *testing.T, body []byte) {
		if list, err := readList(bytes.NewReader(body), newDecoder(NewShared())); (list == nil) == (err == nil) {
			t.Errorf("got a list %v and an error %v", list, err)
		}
		for _, e := range events(body) {
			if e.Type == "" || e.Object == nil {
				t.Errorf("an event of type %q with %v", e.Type, e.Object)
			}
		}
	})
}

func TestAWatchThatIsStoppedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		added := frame(t, "ADDED", encode(t, realisticPod(1)))
		w := newWatcher(io.NopCloser(bytes.NewReader(bytes.Repeat(added, 2*waiting))), newDecoder(NewShared()), func() {}, func() {})
		synctest.Wait() // the events that wait are not taken
		w.Stop()
		w.Stop()
		n := 0
		for range w.ResultChan() {
			n++
		}
		if n != waiting {
			t.Errorf("%d events, want the %d that waited", n, waiting)
		}
	})
}
