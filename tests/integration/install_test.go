package integration

import (
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/integration/controlplane"
)

const (
	installFile  = "../../install.yaml"
	guardFile    = "../../install-writer-guard.yaml" // for servers from 1.30 on
	namespace    = "kube-system"                     // of all that install.yaml writes
	agent        = "kube-network-policies"
	statusWriter = "kube-network-policies-status"
)

// install applies install.yaml as its readers are told to.
func install(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	newKubectl(t, plane.Admin()).run("apply", "--server-side", "--validate=strict", "-f", installFile)
}

// account returns the rights of a service account of install.yaml.
func account(t *testing.T, plane *controlplane.ControlPlane, name string) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	config := must[*rest.Config](t)(plane.ServiceAccount(t.Context(), namespace, name))
	return config, must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(config))
}

func TestServersAcceptInstallYAML(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		install(t, plane)
		// Applied again it changes nothing: all of it is there, as written.
		versions := func() string {
			return newKubectl(t, plane.Admin()).run("get", "-f", installFile, "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}")
		}
		before := versions()
		install(t, plane)
		if after := versions(); after != before {
			t.Errorf("applied again, objects changed\nfrom\n%s\nto\n%s", before, after)
		}
	})
}

// The guard of the status writer is for servers from 1.30 on. Older ones do not
// know the kind, which is why it is a file of its own.
func TestServersAcceptTheGuardIfTheyKnowIt(t *testing.T) {
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

func TestTheAgentsAccountSuffices(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		install(t, plane)
		s := newShop(t, plane)
		config, _ := account(t, plane, agent)
		v := newView(t, config, s.node, s.guarded()...)
		v.eventually(s.guarded()...)
		s.createPolicy("more", "client", fromApp("stranger"))
		v.eventually(denied(s.web, s.client, port))
	})
}

func TestAccountsHaveNoMoreRightsThanTheyNeed(t *testing.T) {
	want := map[string][]string{
		agent: {
			"get list watch namespaces",
			"get list watch networkpolicies.networking.k8s.io",
			"get list watch nodes",
			"get list watch pods",
		},
		statusWriter: {
			"create events.events.k8s.io",
			"create leases.coordination.k8s.io",
			"get list watch patch networkpolicies.networking.k8s.io",
			"get update leases.coordination.k8s.io kube-network-policies-status",
			"patch networkpolicies/status.networking.k8s.io",
		},
	}
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		install(t, plane)
		for name, want := range want {
			_, client := account(t, plane, name)
			if got := rights(t, client); !slices.Equal(got, want) {
				t.Errorf("%s has the rights %q, want %q", name, got, want)
			}
		}
	})
}

func TestAgentsCannotChangePolicies(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		install(t, plane)
		s := newShop(t, plane)
		_, client := account(t, plane, agent)
		_, err := client.NetworkingV1().NetworkPolicies(s.namespace).Patch(t.Context(), "guard", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("patch of a policy: got %v, want forbidden", err)
		}
	})
}

// rights returns what a client may do in kube-system to objects, without what
// everybody may: to ask about oneself.
func rights(t *testing.T, client kubernetes.Interface) []string {
	t.Helper()
	review := must[*authorizationv1.SelfSubjectRulesReview](t)(client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{}))
	if review.Status.Incomplete {
		t.Errorf("the server tells not all rights: %s", review.Status.EvaluationError)
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
