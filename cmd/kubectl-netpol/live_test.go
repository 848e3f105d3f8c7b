package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// may decides whether a user has the right to a verb for a resource in a namespace. The
// empty namespace stands for all namespaces and for cluster-scoped resources.
type may func(verb, resource, namespace string) bool

// everywhere are the rights that the documentation asks for.
func everywhere(verb, _, namespace string) bool { return verb == "list" && namespace == "" }

// only are the rights of someone who may read everything in some namespaces.
func only(namespaces ...string) may {
	return func(_, resource, namespace string) bool {
		return resource != "namespaces" && slices.Contains(namespaces, namespace)
	}
}

// except are the rights that the documentation asks for without one resource.
func except(resource string) may {
	return func(verb, r, namespace string) bool { return r != resource && everywhere(verb, r, namespace) }
}

// server returns an API server with the objects of manifests in testdata. It authorises
// like RBAC: whoever may list in all namespaces may list in each. It serves the
// administrators' kinds only if it has objects of them.
func server(t *testing.T, rights may, paths ...string) *httptest.Server {
	t.Helper()
	objects := &clusterfiles.Objects{}
	if len(paths) > 0 {
		var err error
		if objects, err = clusterfiles.Read(paths, nil, clusterfiles.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	a := &apiServer{may: rights, stored: map[string]*compile.Kind{}, objects: map[*compile.Kind][]compile.Object{}, versions: map[string]metav1.APIResourceList{}}
	a.store(compile.KindNamespace, asObjects(objects.Namespaces)...)
	a.store(compile.KindPod, asObjects(objects.Pods)...)
	a.store(compile.KindNode, asObjects(objects.Nodes)...)
	a.store(kindService, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}})
	a.store(kindEndpointSlice)
	if len(objects.CIDRGroups) > 0 {
		a.store(compile.KindCIDRGroup, asObjects(objects.CIDRGroups)...)
	}
	for _, k := range kindsOfWorkloads {
		a.store(k)
	}
	administrators := slices.ContainsFunc(objects.Policies, func(o compile.Object) bool { return compile.KindOf(o).IsAdmin() })
	for _, k := range compile.Kinds {
		if !k.IsAdmin() || administrators {
			a.store(k, slices.DeleteFunc(slices.Clone(objects.Policies), func(o compile.Object) bool { return !k.Has(o) })...)
		}
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return s
}

// kindService and kindEndpointSlice are not kinds that affect verdicts.
var (
	kindService       = &compile.Kind{Name: "Service", Resource: corev1.SchemeGroupVersion.WithResource("services"), Namespaced: true}
	kindServiceCIDR   = &compile.Kind{Name: "ServiceCIDR", Resource: networkingv1.SchemeGroupVersion.WithResource("servicecidrs")}
	kindEndpointSlice = &compile.Kind{Name: "EndpointSlice", Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Namespaced: true}
)

// kindsOfWorkloads are those that diff, check and suggest read.
var kindsOfWorkloads = []*compile.Kind{
	{Name: "Deployment", Resource: appsv1.SchemeGroupVersion.WithResource("deployments"), Namespaced: true},
	{Name: "StatefulSet", Resource: appsv1.SchemeGroupVersion.WithResource("statefulsets"), Namespaced: true},
	{Name: "DaemonSet", Resource: appsv1.SchemeGroupVersion.WithResource("daemonsets"), Namespaced: true},
	{Name: "CronJob", Resource: batchv1.SchemeGroupVersion.WithResource("cronjobs"), Namespaced: true},
}

type apiServer struct {
	may      may
	stored   map[string]*compile.Kind // by list path
	objects  map[*compile.Kind][]compile.Object
	versions map[string]metav1.APIResourceList // by path of the version
}

func (a *apiServer) store(k *compile.Kind, objects ...compile.Object) {
	version := "/apis/" + k.Resource.GroupVersion().String()
	if k.Resource.Group == "" {
		version = "/api/" + k.Resource.Version
	}
	a.stored[version+"/"+k.Resource.Resource] = k
	a.objects[k] = objects
	resources := a.versions[version]
	resources.APIResources = append(resources.APIResources, metav1.APIResource{Name: k.Resource.Resource, Verbs: []string{"get", "list"}})
	a.versions[version] = resources
}

func asObjects[O compile.Object](objects []O) []compile.Object {
	var all []compile.Object
	for _, o := range objects {
		all = append(all, o)
	}
	return all
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	code, answer := a.answer(r)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

// The paths of the objects in a namespace, of a group version, and of one namespace.
var (
	pathInNamespace = regexp.MustCompile(`^(/.*)/namespaces/([^/]+)/([^/]+)$`)
	pathOfVersion   = regexp.MustCompile(`^/apis/[^/]+(/[^/]+)?$`) // every user may read these
	pathOfOne       = regexp.MustCompile(`^(/api/v1/namespaces)/([^/]+)$`)
)

func (a *apiServer) answer(r *http.Request) (int, any) {
	if version, ok := a.versions[r.URL.Path]; ok {
		return http.StatusOK, version
	}
	if pathOfVersion.MatchString(r.URL.Path) {
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	verb, path, namespace, name := "list", r.URL.Path, "", ""
	if m := pathInNamespace.FindStringSubmatch(path); m != nil {
		path, namespace = m[1]+"/"+m[3], m[2]
	} else if m := pathOfOne.FindStringSubmatch(path); m != nil {
		verb, path, name = "get", m[1], m[2]
		namespace = name // a Role in a Namespace can grant the right to read it
	}
	k, resource := a.stored[path], path[strings.LastIndex(path, "/")+1:]
	switch {
	case r.Method != http.MethodGet || r.URL.Query().Has("watch") || !a.may(verb, resource, namespace) && !a.may(verb, resource, ""):
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	case k == nil:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	var items []compile.Object
	for _, o := range a.objects[k] {
		if name == o.GetName() {
			return http.StatusOK, o
		}
		if namespace == "" || namespace == o.GetNamespace() {
			items = append(items, o)
		}
	}
	if name != "" {
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	return http.StatusOK, map[string]any{"apiVersion": k.Resource.GroupVersion().String(), "kind": k.Name + "List", "items": items}
}

func failure(code int, reason metav1.StatusReason) (int, any) {
	return code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(code), Message: strings.ToLower(string(reason)),
	}
}

// kubeconfig writes a kubeconfig with the server in context "shop" and returns its path.
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
	shop := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop").URL)
	withAdmin := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop", "admin.yaml").URL)
	for _, tc := range []struct {
		live, files string
		code        int
	}{
		{"matrix --port http" + shop, "matrix --port http -f shop", 0},
		{"explain web db --port 5432" + shop, "explain shop/web shop/db --port 5432 -f shop", 1},
		{"check -n shop" + shop, "check -n shop -f shop", 0},
		{"matrix --port http --from web --to 203.0.113.9" + withAdmin, "matrix --port http -f shop -f admin.yaml --from shop/web --to 203.0.113.9", 0},
		{"explain monitoring/prometheus db --port 5432" + withAdmin, "explain monitoring/prometheus shop/db --port 5432 -f shop -f admin.yaml", 1},
		{"check --disable no-default-deny --feature-gates Nodes=false" + withAdmin, "check --disable no-default-deny --feature-gates Nodes=false -f shop -f admin.yaml", 1},
	} {
		t.Run(tc.files, func(t *testing.T) {
			code, live, stderr := call(t, "", tc.live)
			_, files, stderrFiles := call(t, "", tc.files)
			files = regexp.MustCompile(`(?m)^[a-z/]+\.yaml:\d+: `).ReplaceAllString(files, "")
			if code != tc.code || live != files || stderr != stderrFiles {
				t.Errorf("%s: got %d\n%s%swant\n%s", tc.live, code, live, stderr, files)
			}
		})
	}
}

// Someone who may read only one namespace gets the same answers about it as someone who may
// read everything, and the limits of the answers.
func TestRightsForOneNamespace(t *testing.T) {
	t.Chdir("testdata")
	const (
		pods       = "Not read: Pods of other namespaces than shop could not be read: "
		namespaces = "Not read: Namespaces could not be read: "
		nodes      = "Not read: Nodes could not be read: "
		policies   = "Not read: NetworkPolicies of other namespaces than shop could not be read: "
	)
	all := server(t, everywhere, "shop").URL
	one := server(t, only("shop"), "shop").URL
	for _, command := range []string{
		"check -n shop",
		"explain web db --port 5432",
		"explain web db --port 5432 -n shop",
		"explain shop/api shop/db --port 5432",
		"explain web 203.0.113.9 --port 443",
		"matrix --port 5432 -n shop",
		"matrix --port http --from web --to api --to web",
	} {
		t.Run(command, func(t *testing.T) {
			wantCode, want, none := call(t, "", command+" --context shop --kubeconfig "+kubeconfig(t, all))
			code, got, limits := call(t, "", command+" --context shop --kubeconfig "+kubeconfig(t, one))
			if code != wantCode || got != want {
				t.Errorf("got %d\n%s%swant %d\n%s", code, got, limits, wantCode, want)
			}
			if none != "" {
				t.Errorf("with all rights: %s", none)
			}
			for _, limit := range []string{pods, namespaces, nodes, policies} {
				if strings.Count(limits, limit) != 1 {
					t.Errorf("want %q in\n%s", limit, limits)
				}
			}

			if n := strings.Count(limits, "Not read: "); n != limitsOf(command) {
				t.Errorf("got %d limits\n%s", n, limits)
			}
		})
	}
	t.Run("the namespaces of both sides are read", func(t *testing.T) {
		two := server(t, only("shop", "monitoring"), "shop").URL
		code, got, limits := call(t, "", "explain monitoring/prometheus db --port 5432 --context shop --kubeconfig "+kubeconfig(t, two))
		if code != 1 || !strings.HasPrefix(got, "monitoring/prometheus -> shop/db, TCP 5432: denied\n") || !strings.Contains(limits, "than monitoring and shop could") {
			t.Errorf("got %d\n%s%s", code, got, limits)
		}
	})
	t.Run("a pod that is not known", func(t *testing.T) {
		code, _, stderr := call(t, "", "explain monitoring/prometheus db --port 5432 --context shop --kubeconfig "+kubeconfig(t, one))
		if code != 2 || !strings.Contains(stderr, pods) || !strings.Contains(stderr, `error: source: no pod "monitoring/prometheus"`) {
			t.Errorf("got %d %s", code, stderr)
		}
	})
	t.Run("JSON", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "expectations.yaml")
		if err := os.WriteFile(file, []byte(expectations(holds)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"check", "explain web db --port 5432", "matrix --port 5432", "diff -f proposed", "assert " + file} {
			_, stdout, stderr := call(t, "", command+" -o json --context shop --kubeconfig "+kubeconfig(t, one))
			var got struct{ Limits []string }
			if err := json.Unmarshal([]byte(stdout), &got); err != nil || len(got.Limits) != limitsOf(command) {
				t.Errorf("%s: got %d limits, %v\n%s%s", command, len(got.Limits), err, stdout, stderr)
			}
		}
	})
	t.Run("no namespace", func(t *testing.T) {
		none := server(t, only(), "shop").URL
		code, stdout, stderr := call(t, "", "check -n shop --context shop --kubeconfig "+kubeconfig(t, none))
		if code != 2 || stdout != "" || !strings.Contains(stderr, "error: list networkpolicies: forbidden (a namespace that may be read can be named with -n)") {
			t.Errorf("got %d\n%s%s", code, stdout, stderr)
		}
	})
}

// limitsOf returns the number of limits of a command with rights for one namespace.
func limitsOf(command string) int {
	name, _, _ := strings.Cut(command, " ")
	switch name {
	case "check":
		return 6 // including workloads and Services
	case "diff":
		return 6 // including workloads and classes of Ingresses
	case "matrix":
		return 5 // including classes of Ingresses
	}
	return 4
}

// Missing rights limit the answers, but do not prevent them as long as the pods and
// policies of a namespace can be read.
func TestRightsThatAreMissing(t *testing.T) {
	t.Chdir("testdata")
	for resource, want := range map[string]string{
		"adminnetworkpolicies":         "AdminNetworkPolicies could not be read: they are evaluated before NetworkPolicies",
		"baselineadminnetworkpolicies": "BaselineAdminNetworkPolicies could not be read: they are evaluated for pods that no NetworkPolicy selects",
		"clusternetworkpolicies":       "ClusterNetworkPolicies could not be read: they are evaluated before and after",
		"nodes":                        "Nodes could not be read: only the addresses of those of the pods are known",
		"namespaces":                   "Namespaces could not be read: of their labels only kubernetes.io/metadata.name is known",
		"pods":                         "Pods could not be read: their addresses are taken for addresses outside of the cluster",
		"networkpolicies":              "",
	} {
		t.Run(resource, func(t *testing.T) {
			s := server(t, except(resource), "shop", "admin.yaml")
			code, stdout, stderr := call(t, "", "explain 203.0.113.9 203.0.113.10 --port 80 --context shop --kubeconfig "+kubeconfig(t, s.URL))
			if want == "" {
				if code != 2 || stdout != "" || !strings.HasPrefix(stderr, "error: list networkpolicies: forbidden") {
					t.Errorf("%s: got %d\n%s%s", resource, code, stdout, stderr)
				}
				return
			}
			if code != 0 || !strings.HasPrefix(stderr, "Not read: "+want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s: got %d\n%s%s", resource, code, stdout, stderr)
			}
		})
	}
	t.Run("a kind that does not count", func(t *testing.T) {
		s := server(t, except("clusternetworkpolicies"), "shop", "admin.yaml")
		code, _, stderr := call(t, "", "matrix --port 80 --admin-policies=false --context shop --kubeconfig "+kubeconfig(t, s.URL))
		if code != 0 || stderr != "" {
			t.Errorf("got %d %s", code, stderr)
		}
	})
	t.Run("one Namespace", func(t *testing.T) {
		s := server(t, func(verb, resource, namespace string) bool {
			return resource != "namespaces" && everywhere(verb, resource, namespace) || verb == "get" && namespace == "shop"
		}, "shop")
		code, _, stderr := call(t, "", "matrix --port 80 --context shop --kubeconfig "+kubeconfig(t, s.URL))
		if code != 0 || !strings.HasPrefix(stderr, "Not read: Namespaces other than shop could not be read: ") {
			t.Errorf("got %d %s", code, stderr)
		}
	})
}

// The namespaces of applied policies are read, whatever the context's namespace is.
func TestRightsForTheNamespaceOfThePolicy(t *testing.T) {
	t.Chdir("testdata")
	config := kubeconfig(t, server(t, only("shop"), "shop").URL)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	otherNamespace := strings.Replace(string(text), `"namespace":"shop"`, `"namespace":"elsewhere"`, 1)
	if err := os.WriteFile(config, []byte(otherNamespace), 0o600); err != nil {
		t.Fatal(err)
	}

	code, stdout, stderr := call(t, dbPolicy, "diff --port 5432 -f - --context shop --kubeconfig "+config)
	const want = "TCP 5432:\n  no longer allowed: shop/api -> shop/db\n    by shop/db\n  newly allowed: shop/web -> shop/db\n    by shop/db\n\n"
	if code != 1 || !strings.HasPrefix(stdout, want) || !strings.Contains(stderr, "of other namespaces than shop could not be read") {
		t.Errorf("got %d\n%s%s", code, stdout, stderr)
	}
}

// A workload without pods is compared, because it will have some.
func TestWorkloadsWithoutPodsAreCompared(t *testing.T) {
	t.Chdir("testdata")
	s := server(t, everywhere, "shop")
	api := s.Config.Handler.(*apiServer)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "api", "scaled": "to-zero"}}}
	api.store(kindsOfWorkloads[0], &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "asleep"}, Spec: appsv1.DeploymentSpec{Template: template}})
	flags := "diff --port 5432 -f proposed --context shop --kubeconfig " + kubeconfig(t, s.URL)
	if code, stdout, stderr := call(t, "", flags); code != 1 || !strings.Contains(stdout, "between 6 pods") || stderr != "" {
		t.Errorf("got %d\n%s%s", code, stdout, stderr)
	}

	policy := strings.NewReplacer("name: db", "name: asleep", "{app: db}", "{scaled: to-zero}").Replace(dbPolicy)
	code, stdout, stderr := call(t, policy, strings.Replace(flags, "-f proposed", "-f -", 1))
	if code != 1 || !strings.HasPrefix(stdout, "TCP 5432:\n  newly allowed: shop/web -> shop/deploy/asleep\n    by shop/asleep\n\n") {
		t.Errorf("got %d\n%s%s", code, stdout, stderr)
	}
}

// A policy for a workload without pods is not a mistake.
func TestWorkloadsWithoutPodsAreChecked(t *testing.T) {
	t.Chdir("testdata")
	s := server(t, everywhere, "shop")
	api := s.Config.Handler.(*apiServer)
	policies := slices.Clone(api.objects[compile.KindNetworkPolicy])
	api.store(compile.KindNetworkPolicy, append(policies, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "asleep"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"scaled": "to-zero"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	})...)
	command := "check --context shop --kubeconfig " + kubeconfig(t, s.URL)
	const want = "NetworkPolicy shop/asleep spec.podSelector: "
	if code, stdout, stderr := call(t, "", command); code != 1 || !strings.Contains(stdout, want) {
		t.Errorf("without the Deployment: got %d\n%s%s", code, stdout, stderr)
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"scaled": "to-zero"}}}
	api.store(kindsOfWorkloads[0], &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "asleep"}, Spec: appsv1.DeploymentSpec{Template: template}})

	if code, stdout, stderr := call(t, "", command); code != 0 || strings.Contains(stdout, "asleep") || stderr != "" {
		t.Errorf("with the Deployment: got %d\n%s%s", code, stdout, stderr)
	}
}

// If nodes may not be read, they are derived from their pods.
func TestNodesOfPods(t *testing.T) {
	pod := func(node string, ips ...string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{HostIP: ips[0]}}
		for _, ip := range ips {
			p.Status.HostIPs = append(p.Status.HostIPs, corev1.HostIP{IP: ip})
		}
		return p
	}
	var got []string
	for _, node := range clusterfiles.NodesOf([]*corev1.Pod{pod("b", "192.0.2.1", "2001:db8::1"), pod("a", "192.0.2.2"), pod("b", "192.0.2.1"), pod("", "")}) {
		got = append(got, node.Name)
		for _, a := range node.Status.Addresses {
			got = append(got, a.Address)
		}
	}
	if want := []string{"a", "192.0.2.2", "b", "192.0.2.1", "2001:db8::1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Applied policies replace those with the same names and leave the others. Pods in the same
// files are ignored.
func TestPoliciesAreAppliedToTheLiveCluster(t *testing.T) {
	t.Chdir("testdata")
	flags := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop").URL)
	code, live, stderr := call(t, "", "diff -f proposed"+flags)
	if _, files, _ := call(t, "", "diff -f shop -f proposed"); code != 1 || live != files {
		t.Errorf("got %d\n%s%swant\n%s", code, live, stderr, files)
	}
	if code, live, stderr := call(t, "", "diff -f shop"+flags); code != 0 {
		t.Errorf("applied what is there: %d\n%s%s", code, live, stderr)
	}

	code, live, _ = call(t, "", "diff --port 5432 -f faulty.yaml --feature-gates=EndPort=false,SCTP=false"+flags)
	if want := "no longer allowed: shop/api -> shop/db"; code != 1 || !strings.Contains(live, want) || strings.Contains(live, "newly") {
		t.Errorf("got %d\n%s", code, live)
	}
}

func TestAdministratorsPoliciesAreAppliedToTheLiveCluster(t *testing.T) {
	t.Chdir("testdata")
	flags := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop", "admin.yaml").URL)
	if code, live, stderr := call(t, "", "diff -f admin.yaml"+flags); code != 0 {
		t.Errorf("applied what is there: %d\n%s%s", code, live, stderr)
	}
	manifest := func(version, kind, name, spec string) string {
		return "apiVersion: policy.networking.k8s.io/" + version + "\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec: {subject: {namespaces: {}}, " + spec + "}\n"
	}
	for _, tc := range []struct{ name, policy, want string }{
		{"ClusterNetworkPolicy", manifest("v1beta1", "ClusterNetworkPolicy", "egress", "tier: Admin, priority: 20, egress: [{action: Deny, to: [{nodes: {}}]}]"),
			"  no longer allowed: monitoring/new pod, monitoring/prometheus, shop/api, shop/db, shop/new pod -> monitoring/node-exporter, 192.168.0.2\n    by ClusterNetworkPolicy/egress\n" +
				"  newly allowed: shop/web -> 203.0.113.0/24\n    by ClusterNetworkPolicy/egress\n"},
		{"AdminNetworkPolicy", manifest("v1alpha1", "AdminNetworkPolicy", "monitoring", "priority: 10, ingress: [{action: Allow, from: [{namespaces: {matchLabels: {team: ops}}}]}]"),
			"  newly allowed: monitoring/new pod, monitoring/prometheus -> shop/api, shop/db, shop/new pod, shop/web\n    by AdminNetworkPolicy/monitoring\n"},
		{"BaselineAdminNetworkPolicy", manifest("v1alpha1", "BaselineAdminNetworkPolicy", "default", "ingress: [{action: Deny, from: [{namespaces: {}}]}]"),
			"  no longer allowed: monitoring/new pod, monitoring/prometheus -> each other\n    by BaselineAdminNetworkPolicy/default\n" +
				"  no longer allowed: shop/api, shop/db, shop/new pod, shop/web -> monitoring/new pod, monitoring/prometheus\n    by BaselineAdminNetworkPolicy/default\n" +
				"  no longer allowed: monitoring/new pod -> another pod like it\n    by BaselineAdminNetworkPolicy/default\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, live, stderr := call(t, tc.policy, "diff --port 10250 -f -"+flags)
			if code != 1 || !strings.HasPrefix(live, "TCP 10250:\n"+tc.want+"\nCompared: ") {
				t.Errorf("got %d\n%s%swant\n%s", code, live, stderr, tc.want)
			}
		})
	}
}

// A cluster may serve ClusterNetworkPolicy in another version than that of the manifests.
func TestVersionsOfALiveCluster(t *testing.T) {
	t.Chdir("testdata")
	const group, newest = "/apis/policy.networking.k8s.io/", "v1beta1"
	for version, want := range map[string]string{
		"v1alpha2": "",
		"v1": "error: list clusternetworkpolicies: clusternetworkpolicies.policy.networking.k8s.io are served in version v1 only, and read in v1beta1 or v1alpha2: " +
			"install a CustomResourceDefinition that serves one of these, or a release of this program that reads what is served\n",
	} {
		t.Run(version, func(t *testing.T) {
			inner := server(t, everywhere, "shop", "admin.yaml").Config.Handler
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rest, ours := strings.CutPrefix(r.URL.Path, group)
				switch served, in := strings.CutPrefix(rest, version); {
				case r.URL.Path+"/" == group:
					w.Header().Set("Content-Type", "application/json")
					_ = json.NewEncoder(w).Encode(metav1.APIGroup{Versions: []metav1.GroupVersionForDiscovery{{Version: version}}})
					return
				case ours && in && (served == "" || served[0] == '/'):
					r.URL.Path = group + newest + served
				case ours && strings.HasPrefix(rest, newest):
					r.URL.Path = group + "none"
				}
				inner.ServeHTTP(w, r)
			}))
			defer s.Close()
			code, live, stderr := call(t, "", "diff -f admin.yaml --context shop --kubeconfig "+kubeconfig(t, s.URL))
			if stderr != want || (code == 0) != (want == "") {
				t.Errorf("got %d\n%s%s", code, live, stderr)
			}
		})
	}
}

func TestALiveClusterThatCannotBeReadIsAnError(t *testing.T) {
	t.Chdir("testdata")
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	code, _, stderr := call(t, "", "check --context shop --kubeconfig "+kubeconfig(t, s.URL))
	if code != 2 || !strings.HasPrefix(stderr, "error: list pods: ") {
		t.Errorf("got %d %s", code, stderr)
	}

	code, _, stderr = call(t, "", "check --context missing --kubeconfig "+kubeconfig(t, s.URL))
	if code != 2 || !strings.Contains(stderr, `context "missing" does not exist`) {
		t.Errorf("got %d %s", code, stderr)
	}
}
