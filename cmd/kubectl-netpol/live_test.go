package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/policycache/manifests"
)

// server is an API server that lets the client list, and nothing else. It serves
// testdata/shop.
func server(t *testing.T) *httptest.Server {
	t.Helper()
	objects, err := manifests.Read([]string{"shop"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string]any{
		"/api/v1/namespaces": objects.Namespaces,
		"/api/v1/pods":       objects.Pods,
		"/api/v1/nodes":      objects.Nodes,
		"/apis/networking.k8s.io/v1/networkpolicies": objects.NetworkPolicies,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		items, ok := lists[r.URL.Path]
		if !ok || r.Method != http.MethodGet || r.URL.Query().Has("watch") {
			w.WriteHeader(http.StatusForbidden)
			items = nil
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"items": items}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// kubeconfig tells of a server, in its context "shop" only.
func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	text := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"` + url + `"}}],
		"users":[{"name":"u","user":{"token":"t"}}],
		"contexts":[{"name":"shop","context":{"cluster":"c","user":"u","namespace":"shop"}},{"name":"other","context":{"cluster":"none","user":"u"}}],
		"current-context":"other"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheLiveClusterIsListed(t *testing.T) {
	t.Chdir("testdata")
	flags := " --context shop --kubeconfig " + kubeconfig(t, server(t).URL)
	for _, tc := range []struct {
		live, files string
		code        int
	}{
		{"matrix --port http", "matrix --port http -f shop", 0},
		{"explain web db --port 5432", "explain shop/web shop/db --port 5432 -f shop", 1},
		{"check", "check -f shop", 0},
	} {
		code, live, stderr := call(t, "", tc.live+flags)
		_, files, _ := call(t, "", tc.files)
		if code != tc.code || live != files || stderr != "" {
			t.Errorf("%s: got %d\n%s%swant\n%s", tc.live, code, live, stderr, files)
		}
	}
}

// What is applied replaces policies of its names and leaves the others; the
// pods beside it are not looked at.
func TestPoliciesAreAppliedToTheLiveCluster(t *testing.T) {
	t.Chdir("testdata")
	flags := " --context shop --kubeconfig " + kubeconfig(t, server(t).URL)
	code, live, stderr := call(t, "", "diff -f proposed"+flags)
	if _, files, _ := call(t, "", "diff -f shop -f proposed"); code != 1 || live != files {
		t.Errorf("got %d\n%s%swant\n%s", code, live, stderr, files)
	}
	if code, live, stderr := call(t, "", "diff -f shop"+flags); code != 0 {
		t.Errorf("applied what is there: %d\n%s%s", code, live, stderr)
	}
	code, live, _ = call(t, "", "diff --port 5432 -f faulty.yaml"+flags)
	if want := "no longer allowed: shop/api -> shop/db"; code != 1 || !strings.Contains(live, want) || strings.Contains(live, "newly") {
		t.Errorf("got %d\n%s", code, live)
	}
}

func TestALiveClusterThatCannotBeReadIsAnError(t *testing.T) {
	t.Chdir("testdata")
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	code, _, stderr := call(t, "", "check --context shop --kubeconfig "+kubeconfig(t, s.URL))
	if code != 2 || !strings.HasPrefix(stderr, "error: list namespaces: ") {
		t.Errorf("got %d %s", code, stderr)
	}
	code, _, stderr = call(t, "", "check --context missing --kubeconfig "+kubeconfig(t, s.URL))
	if code != 2 || !strings.Contains(stderr, `context "missing" does not exist`) {
		t.Errorf("got %d %s", code, stderr)
	}
}
