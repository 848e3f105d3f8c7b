package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

const (
	installFile      = "../../../install.yaml"
	installAdminFile = "../../../install-anp.yaml"          // with the administrators' kinds
	guardFile        = "../../../install-writer-guard.yaml" // for servers from 1.30 on
	uninstallFile    = "../../../uninstall.yaml"
	namespace        = "kube-system" // of all that they write
	agent            = "netpol-agent"
	statusWriter     = "netpol-status"
	uninstaller      = "netpol-uninstall"
)

// install applies install.yaml as documented.
func install(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	newKubectl(t, plane.Admin()).run("apply", "--server-side", "--validate=strict", "-f", installFile)
}

// installAdmin applies install-anp.yaml for one test: other tests must not have the
// rights that it adds.
func installAdmin(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	k := newKubectl(t, plane.Admin())
	k.run("apply", "--server-side", "--validate=strict", "-f", installAdminFile)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { must[string](t)(k.with(ctx, "", "delete", "--ignore-not-found", "-f", installAdminFile)) })
}

// installation is a file that can be installed.
type installation struct {
	file  string
	apply func(*testing.T, *controlplane.ControlPlane)
	kinds []*compile.Kind // that its agents watch
}

var (
	allKinds = []*compile.Kind{compile.KindAdminNetworkPolicy, compile.KindBaselineAdminNetworkPolicy, compile.KindClusterNetworkPolicy}

	plainInstallation = installation{installFile, install, []*compile.Kind{}}
	adminInstallation = installation{installAdminFile, installAdmin, allKinds}
)

// onInstallations runs a test for each file on some servers, before anything is
// installed.
func onInstallations(t *testing.T, some []*server, test func(*testing.T, *controlplane.ControlPlane, installation)) {
	for _, i := range []installation{plainInstallation, adminInstallation} {
		t.Run(filepath.Base(i.file), func(t *testing.T) {
			on(t, some, func(t *testing.T, plane *controlplane.ControlPlane) { test(t, plane, i) })
		})
	}
}

// account returns the rights of a service account.
func account(t *testing.T, plane *controlplane.ControlPlane, namespace, name string) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	config := must[*rest.Config](t)(plane.ServiceAccount(t.Context(), namespace, name))
	return config, must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(config))
}

func TestServersAcceptInstallation(t *testing.T) {
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		// Applying it again changes nothing: all objects exist as written.
		versions := func() string {
			return newKubectl(t, plane.Admin()).run("get", "-f", i.file, "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}")
		}
		before := versions()
		i.apply(t, plane)
		if after := versions(); after != before {
			t.Errorf("applied again, objects changed\nfrom\n%s\nto\n%s", before, after)
		}
	})
}

// operatorKinds are those of the Prometheus operator, which the servers do not have.
var operatorKinds = regexp.MustCompile(`(?m)^apiVersion: monitoring\.coreos\.com/`)

// What the Helm chart renders with its defaults, and with every value changed, is valid.
func TestServersAcceptChart(t *testing.T) {
	defaults := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(defaults, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]string{"defaults": defaults, "every value": "chart/testdata/every-value.yaml"} {
		for version, s := range map[string]*server{"v1.37.0": newest, "v1.27.0": statusOff} {
			t.Run(name+" on "+version, func(t *testing.T) {
				objects, hooks := renderChart(t, values, version)
				documents := slices.Concat(slices.DeleteFunc(objects, operatorKinds.MatchString), hooks)
				if len(documents) < 8 || len(hooks) == 0 {
					t.Fatalf("rendered are only %d objects, %d of hooks: %q", len(documents), len(hooks), documents)
				}
				k := newKubectl(t, s.start(t).Admin())
				// Helm, too, deletes what hooks have left before it runs them.
				k.run("delete", "--ignore-not-found", "--namespace", namespace, "job", uninstaller)
				if _, err := k.try(strings.Join(documents, "\n---\n"), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// renderChart returns the objects that the Helm chart makes of a file of values, below release, and
// those of its hooks, which an installation does not create.
func renderChart(t *testing.T, values, version string) (objects, hooks []string) {
	t.Helper()
	render := exec.CommandContext(t.Context(), "go", "run", "./manifests", "-values", values, "-kube-version", version)
	render.Dir, render.Stderr = "../../../release", os.Stderr
	rendered, err := render.Output()
	if err != nil {
		t.Fatalf("%v: %v", render, err)
	}
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		if strings.Contains(document, "helm.sh/hook:") {
			hooks = append(hooks, document)
		} else {
			objects = append(objects, document)
		}
	}
	return objects, hooks
}

// The guard of the status writer needs a server of 1.30 or later. Older ones do not serve its
// kind, so it has its own file.
func TestServersAcceptWriterGuard(t *testing.T) {
	apply := func(t *testing.T, s *server) error {
		_, err := newKubectl(t, s.start(t).Admin()).try("", "apply", "--server-side", "--validate=strict", "-f", guardFile)
		return err
	}
	if err := apply(t, newest); err != nil {
		t.Error(err)
	}
	if err := apply(t, statusOff); err == nil || !strings.Contains(err.Error(), "no matches for kind") {
		t.Errorf("1.27: got %v, want that the kind is not known", err)
	}
}

func TestAgentAccountHasItsRights(t *testing.T) {
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		s := newShop(t, plane)
		config, _ := account(t, plane, namespace, agent)
		v := newViewOf(t, config, s.node, i.kinds, s.guarded()...)
		v.eventually(s.guarded()...)
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
	})
}

// Every service account has some rights, which differ between releases: to review its own access,
// and since 1.37 to read bundles of certificates.
func TestAccountsHaveOnlyTheirRights(t *testing.T) {
	want := map[string]map[string][]string{
		installFile: {
			agent: {
				"get leases.coordination.k8s.io netpol-status",
				"list watch namespaces",
				"list watch networkpolicies.networking.k8s.io",
				"list watch nodes",
				"list watch pods",
			},
			statusWriter: {
				"create events.events.k8s.io",
				"create leases.coordination.k8s.io",
				"get update leases.coordination.k8s.io netpol-status",
				"list watch namespaces",
				"list watch nodes",
				"list watch patch networkpolicies.networking.k8s.io",
				"list watch pods", // of its namespace alone
				"patch networkpolicies/status.networking.k8s.io",
			},
		},
		installAdminFile: {
			agent: {
				"get leases.coordination.k8s.io netpol-status",
				"list watch adminnetworkpolicies.policy.networking.k8s.io",
				"list watch baselineadminnetworkpolicies.policy.networking.k8s.io",
				"list watch clusternetworkpolicies.policy.networking.k8s.io",
				"list watch endpointslices.discovery.k8s.io", // of kube-system alone
				"list watch namespaces",
				"list watch networkpolicies.networking.k8s.io",
				"list watch nodes",
				"list watch pods",
				"list watch services", // of kube-system alone
			},
			statusWriter: {
				"create events.events.k8s.io",
				"create leases.coordination.k8s.io",
				"get update leases.coordination.k8s.io netpol-status",
				"list watch adminnetworkpolicies.policy.networking.k8s.io",
				"list watch baselineadminnetworkpolicies.policy.networking.k8s.io",
				"list watch clusternetworkpolicies.policy.networking.k8s.io",
				"list watch namespaces",
				"list watch nodes",
				"list watch patch networkpolicies.networking.k8s.io",
				"list watch pods", // of its namespace alone
				"patch adminnetworkpolicies/status.policy.networking.k8s.io",
				"patch baselineadminnetworkpolicies/status.policy.networking.k8s.io",
				"patch clusternetworkpolicies/status.policy.networking.k8s.io",
				"patch networkpolicies/status.networking.k8s.io",
			},
		},
	}
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		withoutRoles := newCluster(t, plane).namespace
		newKubectl(t, plane.Admin()).run("create", "serviceaccount", "default", "--namespace", withoutRoles)
		_, client := account(t, plane, withoutRoles, "default")
		common := rights(t, client)
		for name, want := range want[i.file] {
			_, client := account(t, plane, namespace, name)
			got := slices.DeleteFunc(rights(t, client), func(right string) bool { return slices.Contains(common, right) })
			if !slices.Equal(got, want) {
				t.Errorf("%s has the rights %q, want %q", name, got, want)
			}
		}
	})
}

func TestAgentCannotChangePolicies(t *testing.T) {
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		s := newShop(t, plane)
		_, client := account(t, plane, namespace, agent)
		_, err := client.NetworkingV1().NetworkPolicies(s.namespace).Patch(t.Context(), "guard", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("patch of a policy: got %v, want forbidden", err)
		}
	})
}

// rights returns a client's rights on objects in kube-system.
func rights(t *testing.T, client kubernetes.Interface) []string {
	t.Helper()
	review := must[*authorizationv1.SelfSubjectRulesReview](t)(client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{}))
	if review.Status.Incomplete {
		t.Errorf("the server does not list all rights: %s", review.Status.EvaluationError)
	}
	var all []string
	for _, rule := range review.Status.ResourceRules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				right := strings.Join(rule.Verbs, " ") + " " + resource
				if group != "" {
					right += "." + group
				}
				if len(rule.ResourceNames) > 0 {
					right += " " + strings.Join(rule.ResourceNames, ",")
				}
				all = append(all, right)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
