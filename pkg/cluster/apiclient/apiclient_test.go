package apiclient

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// answering returns a client of an API server that answers each request with a status and an object,
// and where the requests are appended.
func answering(t *testing.T, version schema.GroupVersion, status int, object any) (rest.Interface, *[]string) {
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+r.URL.String())
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(server.Close)
	client, err := New(&rest.Config{Host: server.URL}, nil, version)
	if err != nil {
		t.Fatal(err)
	}
	return client, &requests
}

func expect(t *testing.T, requests *[]string, want string) {
	t.Helper()
	if !slices.Equal(*requests, []string{want}) {
		t.Errorf("requests %q, want %q", *requests, want)
	}
}

func TestRequestsAndAnswers(t *testing.T) {
	t.Run("a list of pods", func(t *testing.T) {
		core, requests := answering(t, corev1.SchemeGroupVersion, http.StatusOK, corev1.PodList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}})
		list, err := Pods(core, "ns").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=n", ResourceVersion: "0"})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "p" {
			t.Errorf("got %v, %v", list, err)
		}
		expect(t, requests, "GET /api/v1/namespaces/ns/pods?fieldSelector=spec.nodeName%3Dn&resourceVersion=0")
	})
	t.Run("a Lease", func(t *testing.T) {
		coordination, requests := answering(t, coordinationv1.SchemeGroupVersion, http.StatusOK, coordinationv1.Lease{
			TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: metav1.ObjectMeta{Name: "l"}})
		lease, err := Leases(coordination, "ns").Get(t.Context(), "l", metav1.GetOptions{})
		if err != nil || lease.Name != "l" {
			t.Errorf("got %v, %v", lease, err)
		}
		expect(t, requests, "GET /apis/coordination.k8s.io/v1/namespaces/ns/leases/l")
	})
	t.Run("a Lease that is written", func(t *testing.T) {
		want := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: metav1.ObjectMeta{Name: "l"}}
		coordination, requests := answering(t, coordinationv1.SchemeGroupVersion, http.StatusOK, want)
		if lease, err := Leases(coordination, "ns").Update(t.Context(), want, metav1.UpdateOptions{}); err != nil || lease.Name != "l" {
			t.Errorf("got %v, %v", lease, err)
		}
		expect(t, requests, "PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/l")
	})
	t.Run("the status of a pod", func(t *testing.T) {
		core, requests := answering(t, corev1.SchemeGroupVersion, http.StatusOK, corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "p"}})
		pod, err := Pods(core, "ns").Patch(t.Context(), "p", types.StrategicMergePatchType, []byte("{}"), metav1.PatchOptions{FieldManager: "m"}, "status")
		if err != nil || pod.Name != "p" {
			t.Errorf("got %v, %v", pod, err)
		}
		expect(t, requests, "PATCH /api/v1/namespaces/ns/pods/p/status?fieldManager=m")
	})
	t.Run("a watch of nodes", func(t *testing.T) {
		core, requests := answering(t, corev1.SchemeGroupVersion, http.StatusOK, metav1.WatchEvent{
			Type: "ADDED", Object: runtime.RawExtension{Object: &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n"}}}})
		seconds := int64(300)
		w, err := Nodes(core).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1", TimeoutSeconds: &seconds})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if node, ok := (<-w.ResultChan()).Object.(*corev1.Node); !ok || node.Name != "n" {
			t.Errorf("got %v", node)
		}
		expect(t, requests, "GET /api/v1/nodes?resourceVersion=1&timeout=5m0s&timeoutSeconds=300&watch=true")
	})
	t.Run("a review", func(t *testing.T) {
		authentication, requests := answering(t, authenticationv1.SchemeGroupVersion, http.StatusCreated, authenticationv1.TokenReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
			Status:   authenticationv1.TokenReviewStatus{Authenticated: true}})
		review, err := TokenReviews(authentication).Create(t.Context(), &authenticationv1.TokenReview{}, metav1.CreateOptions{})
		if err != nil || !review.Status.Authenticated {
			t.Errorf("got %v, %v", review, err)
		}
		expect(t, requests, "POST /apis/authentication.k8s.io/v1/tokenreviews")
	})
}

func TestAnswersThatAreErrors(t *testing.T) {
	missing, _ := answering(t, coordinationv1.SchemeGroupVersion, http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound})
	if _, err := Leases(missing, "ns").Get(t.Context(), "l", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Lease that does not exist: %v", err)
	}
	other, _ := answering(t, coordinationv1.SchemeGroupVersion, http.StatusOK, coordinationv1.LeaseList{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}})
	if lease, err := Leases(other, "ns").Get(t.Context(), "l", metav1.GetOptions{}); err == nil {
		t.Errorf("a list in place of a Lease: %v", lease)
	}
}
