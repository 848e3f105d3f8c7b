package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policycache/manifests"
)

// server is an API server that lets the client list, and nothing else. It serves
// the objects of manifests in testdata; administrators' kinds it knows only if
// there are some. What is forbidden cannot be listed.
func server(t *testing.T, forbidden string, paths ...string) *httptest.Server {
	t.Helper()
	objects, err := manifests.Read(paths, nil)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]any{
		"/api/v1/namespaces": listOf(compile.KindNamespace, objects.Namespaces),
		"/api/v1/pods":       listOf(compile.KindPod, objects.Pods),
		"/api/v1/nodes":      listOf(compile.KindNode, objects.Nodes),
	}
	const admin = "/apis/policy.networking.k8s.io/"
	administrators := slices.ContainsFunc(objects.Policies, func(o compile.Object) bool { return compile.KindOf(o).Flag != "" })
	for _, k := range compile.Kinds {
		if k.Flag != "" && !administrators {
			continue
		}
		version := "/apis/" + k.Resource.GroupVersion().String()
		served, _ := answers[version].(metav1.APIResourceList)
		served.APIResources = append(served.APIResources, metav1.APIResource{Name: k.Resource.Resource, Verbs: []string{"list"}})
		answers[version] = served
		answers[version+"/"+k.Resource.Resource] = listOf(k, slices.DeleteFunc(slices.Clone(objects.Policies), func(o compile.Object) bool { return !k.Has(o) }))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		switch {
		case strings.HasPrefix(r.URL.Path, admin) && strings.Count(r.URL.Path, "/") == 3 && !ok:
			w.WriteHeader(http.StatusNotFound)
		case !ok || r.Method != http.MethodGet || r.URL.Query().Has("watch") || forbidden != "" && strings.HasSuffix(r.URL.Path, "/"+forbidden):
			w.WriteHeader(http.StatusForbidden)
			answer = metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status:   metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "forbidden",
			}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// listOf is a list of objects of a kind, as an API server encodes it.
func listOf(k *compile.Kind, objects any) any {
	return map[string]any{"apiVersion": k.Resource.GroupVersion().String(), "kind": k.Name + "List", "items": objects}
}

// kubeconfig writes a kubeconfig whose context "shop" has a server, and returns its path.
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
	shop := " --context shop --kubeconfig " + kubeconfig(t, server(t, "", "shop").URL)
	both := " --context shop --kubeconfig " + kubeconfig(t, server(t, "", "shop", "admin.yaml").URL)
	for _, tc := range []struct {
		live, files string
		code        int
	}{
		{"matrix --port http" + shop, "matrix --port http -f shop", 0},
		{"explain web db --port 5432" + shop, "explain shop/web shop/db --port 5432 -f shop", 1},
		{"check" + shop, "check -f shop", 0},
		{"matrix --port http --from web --to 203.0.113.9" + both, "matrix --port http -f shop -f admin.yaml --from shop/web --to 203.0.113.9", 0},
		{"explain monitoring/prometheus db --port 5432" + both, "explain monitoring/prometheus shop/db --port 5432 -f shop -f admin.yaml", 1},
		{"check --feature-gates Nodes=false" + both, "check --feature-gates Nodes=false -f shop -f admin.yaml", 1},
	} {
		t.Run(tc.files, func(t *testing.T) {
			code, live, stderr := call(t, "", tc.live)
			_, files, stderrFiles := call(t, "", tc.files)
			if code != tc.code || live != files || stderr != stderrFiles {
				t.Errorf("%s: got %d\n%s%swant\n%s", tc.live, code, live, stderr, files)
			}
		})
	}
}

// An answer that leaves out policies because the user may not see them would be
// wrong.
func TestPoliciesThatMayNotBeListedAreAnError(t *testing.T) {
	t.Chdir("testdata")
	for _, kind := range []string{"adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies"} {
		s := server(t, kind, "shop", "admin.yaml")
		code, stdout, stderr := call(t, "", "matrix --port 80 --context shop --kubeconfig "+kubeconfig(t, s.URL))
		if code != 2 || stdout != "" || !strings.HasPrefix(stderr, "error: list "+kind+": ") || !strings.Contains(stderr, "forbidden") {
			t.Errorf("%s: got %d\n%s%s", kind, code, stdout, stderr)
		}
	}
	s := server(t, "v1alpha2", "shop", "admin.yaml")
	flags := " --context shop --kubeconfig " + kubeconfig(t, s.URL)
	if code, stdout, stderr := call(t, "", "check --cluster-network-policy=false"+flags); code != 0 || stdout != "0 findings in 6 policies\n" {
		t.Errorf("a kind that does not count: %d\n%s%s", code, stdout, stderr)
	}
	code, _, stderr := call(t, "", "check"+flags)
	if code != 2 || !strings.Contains(stderr, "discover the resources of policy.networking.k8s.io/v1alpha2: ") {
		t.Errorf("got %d %s", code, stderr)
	}
}

// What is applied replaces policies of its names and leaves the others; the
// pods beside it are not looked at.
func TestPoliciesAreAppliedToTheLiveCluster(t *testing.T) {
	t.Chdir("testdata")
	flags := " --context shop --kubeconfig " + kubeconfig(t, server(t, "", "shop").URL)
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

func TestAdministratorsPoliciesAreAppliedToTheLiveCluster(t *testing.T) {
	t.Chdir("testdata")
	flags := " --context shop --kubeconfig " + kubeconfig(t, server(t, "", "shop", "admin.yaml").URL)
	if code, live, stderr := call(t, "", "diff -f admin.yaml"+flags); code != 0 {
		t.Errorf("applied what is there: %d\n%s%s", code, live, stderr)
	}
	manifest := func(version, kind, name, spec string) string {
		return "apiVersion: policy.networking.k8s.io/" + version + "\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec: {subject: {namespaces: {}}, " + spec + "}\n"
	}
	for _, tc := range []struct{ policy, want string }{
		{manifest("v1alpha2", "ClusterNetworkPolicy", "egress", "tier: Admin, priority: 20, egress: [{action: Deny, to: [{nodes: {}}]}]"),
			"  no longer allowed: monitoring/prometheus, shop/api, shop/db -> monitoring/node-exporter, 192.168.0.2\n" +
				"  newly allowed: shop/web -> 203.0.113.1\n"},
		{manifest("v1alpha1", "AdminNetworkPolicy", "monitoring", "priority: 10, ingress: [{action: Allow, from: [{namespaces: {matchLabels: {team: ops}}}]}]"),
			"  newly allowed: monitoring/prometheus -> shop/api, shop/db, shop/web\n"},
		{manifest("v1alpha1", "BaselineAdminNetworkPolicy", "default", "ingress: [{action: Deny, from: [{namespaces: {}}]}]"),
			"  no longer allowed: shop/api, shop/db, shop/web -> monitoring/prometheus\n"},
	} {
		code, live, stderr := call(t, tc.policy, "diff --port 10250 -f -"+flags)
		if code != 1 || !strings.HasPrefix(live, "TCP 10250:\n"+tc.want+"\nCompared: ") {
			t.Errorf("got %d\n%s%swant\n%s", code, live, stderr, tc.want)
		}
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
