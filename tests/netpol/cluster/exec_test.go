package cluster

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// The request of a WebSocket is a GET, so it is refused to users who may only create
// pods/exec.
func TestExecNeedsNoRightToGet(t *testing.T) {
	var mu sync.Mutex
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r.Method+" "+r.URL.RequestURI())
		http.Error(w, "refused: "+r.Method, http.StatusForbidden)
	}))
	defer server.Close()
	access := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	err = Exec(t.Context(), access, client, types.NamespacedName{Namespace: "x", Name: "a"}, "main", []string{"ls", "-l"}, remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "refused: POST") {
		t.Errorf("got error %v, want that of the second request", err)
	}

	const path = "/api/v1/namespaces/x/pods/a/exec?command=ls&command=-l&container=main&stdout=true"
	if want := []string{"GET " + path, "POST " + path}; !slices.Equal(requests, want) {
		t.Errorf("requests are %q, want %q", requests, want)
	}
}
