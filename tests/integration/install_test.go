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

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/tests/integration/controlplane"
)

const (
	installFile      = "../../install.yaml"
	installAdminFile = "../../install-anp.yaml"          // with the administrators' kinds
	guardFile        = "../../install-writer-guard.yaml" // for servers from 1.30 on
	uninstallFile    = "../../uninstall.yaml"
	namespace        = "kube-system" // of all that they write
	agent            = "kube-network-policies"
	statusWriter     = "kube-network-policies-status"
	uninstaller      = "kube-network-policies-uninstall"
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

// account returns the rights of a service account that is installed.
func account(t *testing.T, plane *controlplane.ControlPlane, name string) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	config := must[*rest.Config](t)(plane.ServiceAccount(t.Context(), namespace, name))
	return config, must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(config))
}

func TestServersAcceptInstallation(t *testing.T) {
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		// Applied again it changes nothing: all of it is there, as written.
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
		for version, s := range map[string]*server{"v1.36.0": newest, "v1.27.0": statusOff} {
			t.Run(name+" on "+version, func(t *testing.T) {
				documents := slices.DeleteFunc(renderChart(t, values, version), operatorKinds.MatchString)
				if len(documents) < 8 {
					t.Fatalf("rendered are only %d objects: %q", len(documents), documents)
				}
				k := newKubectl(t, s.start(t).Admin())
				if _, err := k.try(strings.Join(documents, "\n---\n"), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// renderChart returns the objects that the Helm chart makes of a file of values, below release.
func renderChart(t *testing.T, values, version string) []string {
	t.Helper()
	render := exec.CommandContext(t.Context(), "go", "run", "./manifests", "-values", values, "-kube-version", version)
	render.Dir, render.Stderr = "../../release", os.Stderr
	rendered, err := render.Output()
	if err != nil {
		t.Fatalf("%v: %v", render, err)
	}
	return strings.Split(string(rendered), "\n---\n")
}

// The guard of the status writer needs a server of 1.30 or later. Older ones do not
// serve its kind, which is why it has its own file.
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
		config, _ := account(t, plane, agent)
		v := newViewOf(t, config, s.node, i.kinds, s.guarded()...)
		v.eventually(s.guarded()...)
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
	})
}

func TestAccountsHaveOnlyTheirRights(t *testing.T) {
	want := map[string]map[string][]string{
		installFile: {
			agent: {
				"list watch namespaces",
				"list watch networkpolicies.networking.k8s.io",
				"list watch nodes",
				"list watch pods",
			},
			statusWriter: {
				"create events.events.k8s.io",
				"create leases.coordination.k8s.io",
				"get update leases.coordination.k8s.io kube-network-policies-status",
				"list watch namespaces",
				"list watch patch networkpolicies.networking.k8s.io",
				"patch networkpolicies/status.networking.k8s.io",
			},
		},
		installAdminFile: {
			agent: {
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
				"get update leases.coordination.k8s.io kube-network-policies-status",
				"list watch adminnetworkpolicies.policy.networking.k8s.io",
				"list watch baselineadminnetworkpolicies.policy.networking.k8s.io",
				"list watch clusternetworkpolicies.policy.networking.k8s.io",
				"list watch namespaces",
				"list watch patch networkpolicies.networking.k8s.io",
				"patch adminnetworkpolicies/status.policy.networking.k8s.io",
				"patch baselineadminnetworkpolicies/status.policy.networking.k8s.io",
				"patch clusternetworkpolicies/status.policy.networking.k8s.io",
				"patch networkpolicies/status.networking.k8s.io",
			},
		},
	}
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		for name, want := range want[i.file] {
			_, client := account(t, plane, name)
			if got := rights(t, client); !slices.Equal(got, want) {
				t.Errorf("%s has the rights %q, want %q", name, got, want)
			}
		}
	})
}

func TestAgentCannotChangePolicies(t *testing.T) {
	onInstallations(t, releases, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		s := newShop(t, plane)
		_, client := account(t, plane, agent)
		_, err := client.NetworkingV1().NetworkPolicies(s.namespace).Patch(t.Context(), "guard", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("patch of a policy: got %v, want forbidden", err)
		}
	})
}

// rights returns a client's rights on objects in kube-system, without the rights
// that all users have: to review their own access.
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
				if strings.HasPrefix(resource, "selfsubject") {
					continue
				}
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
