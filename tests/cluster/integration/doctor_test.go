package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// kubectl netpol doctor deletes its namespace after Ctrl-C, by requests that the end of its context does
// not end.
func TestDoctorIsInterrupted(t *testing.T) {
	on(t, []*server{newest}, func(t *testing.T, plane *controlplane.ControlPlane) {
		c := newCluster(t, plane)
		node := must[*corev1.Node](t)(c.client.CoreV1().Nodes().Get(t.Context(), c.node, metav1.GetOptions{}))
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		must[*corev1.Node](t)(c.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		if err := controlplane.Kubeconfig(plane.Admin(), kubeconfig); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), must[string](t)(kubectlNetpol()), "doctor", "--kubeconfig="+kubeconfig)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// own returns the namespaces of doctor, and whether each is being deleted.
		own := func() map[string]bool {
			all := map[string]bool{}
			for _, ns := range must[*corev1.NamespaceList](t)(c.client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})).Items {
				if strings.HasPrefix(ns.Name, "netpol-doctor-") {
					all[ns.Name] = ns.DeletionTimestamp != nil
				}
			}
			return all
		}
		eventually(t, func() string {
			if len(own()) == 0 {
				return "it has no namespace"
			}
			return ""
		})
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit code says more
		for name, deleted := range own() {
			if !deleted {
				t.Errorf("namespace %s is left", name)
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(out.String(), "no agents run") || !strings.Contains(out.String(), "Not known: connections: ") {
			t.Errorf("exit code %d\n%s", code, &out)
		}
	})
}
