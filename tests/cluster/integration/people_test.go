package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

// kubectlNetpol builds the program for authors of policies, once, and returns its file.
var kubectlNetpol = sync.OnceValues(func() (string, error) {
	file := filepath.Join(scratch, "kubectl-netpol")
	said, err := exec.Command("go", "build", "-C", "../../../cmd/kubectl-netpol", "-o", file, ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build kubectl-netpol: %w: %s", err, said)
	}
	return file, err
})

// runNetpol runs the program as a user, and returns its exit code.
func runNetpol(t *testing.T, as *rest.Config, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := controlplane.Kubeconfig(as, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), must[string](t)(kubectlNetpol()), append(args, "--kubeconfig="+kubeconfig)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// createViewer returns the credentials of someone with the role "view" in the namespace
// of the cluster, and no other rights.
func (c *cluster) createViewer(plane *controlplane.ControlPlane) *rest.Config {
	c.t.Helper()
	const name = "viewer"
	must[*corev1.ServiceAccount](c.t)(c.client.CoreV1().ServiceAccounts(c.namespace).Create(c.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	must[*rbacv1.RoleBinding](c.t)(c.client.RbacV1().RoleBindings(c.namespace).Create(c.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.namespace, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"}, // it takes a controller to make "view" of it
	}, metav1.CreateOptions{}))
	c.t.Cleanup(func() {
		_ = c.client.RbacV1().RoleBindings(c.namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return must[*rest.Config](c.t)(plane.ServiceAccount(c.t.Context(), c.namespace, name))
}

// The role "view" in one namespace is enough for answers about it: those that an
// administrator gets, with what limits them.
func TestViewersGetAnswers(t *testing.T) {
	on(t, []*server{newest}, func(t *testing.T, plane *controlplane.ControlPlane) {
		define(t, plane, crds.V017, crds.Experimental)
		define(t, plane, crds.V030, crds.Experimental)
		c := newCluster(t, plane)
		c.createPod("web", c.node, c.address(1))
		c.createPod("db", c.node, c.address(2))
		c.createPod("other", c.node, c.address(3))
		c.createPolicy("db", "db", fromApp("web"))
		viewer := c.createViewer(plane)
		for _, tc := range []struct {
			args []string
			code int
		}{
			{[]string{"explain", "web", "db", "--port=5432"}, 0},
			{[]string{"explain", "other", "db", "--port=5432"}, 1},
			{[]string{"matrix", "--port=5432"}, 0},
			{[]string{"check", "--fail-on=none"}, 0},
		} {
			t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
				args := append(tc.args, "-n", c.namespace, "-o", "json")
				wantCode, want, _ := runNetpol(t, plane.Admin(), args...)
				code, stdout, stderr := runNetpol(t, viewer, args...)
				var got, all map[string]any
				for text, into := range map[string]*map[string]any{stdout: &got, want: &all} {
					if err := json.Unmarshal([]byte(text), into); err != nil {
						t.Fatalf("%v in %q\n%s", err, text, stderr)
					}
				}
				limits, _ := got["limits"].([]any)
				delete(got, "limits")
				if code != tc.code || code != wantCode || !equalValues(t, got, all) {
					t.Errorf("got %d\n%s%s\nwant %d\n%s", code, stdout, stderr, wantCode, want)
				}
				for _, kind := range []string{"Pods", "Nodes", "NetworkPolicies", "AdminNetworkPolicies", "BaselineAdminNetworkPolicies", "ClusterNetworkPolicies"} {
					if !strings.Contains(stderr, "Not read: "+kind) {
						t.Errorf("nothing about %s in\n%s", kind, stderr)
					}
				}
				if len(limits) < 6 {
					t.Errorf("got %d limits", len(limits))
				}
			})
		}
	})
}

func equalValues(t *testing.T, a, b any) bool {
	t.Helper()
	return bytes.Equal(must[[]byte](t)(json.Marshal(a)), must[[]byte](t)(json.Marshal(b)))
}
