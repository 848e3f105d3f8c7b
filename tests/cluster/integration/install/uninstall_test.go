package install

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

const (
	uninstallFile   = "uninstall.yaml"
	uninstallerName = "netpol-uninstall"
)

// TestUninstallRuns checks that the pods of uninstall.yaml run everywhere where those of
// install-anp.yaml did, with the same image, and may do no more than they need.
func TestUninstallRuns(t *testing.T) {
	installed, container := agent(t, adminFile)
	nodes := named[*appsv1.DaemonSet](t, uninstallFile, uninstallerName).Spec.Template.Spec
	policies := named[*batchv1.Job](t, uninstallFile, uninstallerName).Spec.Template.Spec
	for _, c := range slices.Concat(nodes.InitContainers, nodes.Containers, policies.Containers) {
		if c.Image != container.Image {
			t.Errorf("%s has the image %s, the agent %s", c.Name, c.Image, container.Image)
		}
	}
	for _, c := range slices.Concat(nodes.InitContainers, nodes.Containers) {
		checkRestricted(t, c.SecurityContext, "NET_ADMIN")
	}
	checkRestricted(t, policies.Containers[0].SecurityContext)
	if !nodes.HostNetwork || !slices.ContainsFunc(nodes.Tolerations, func(o corev1.Toleration) bool { return o == installed.Tolerations[0] }) {
		t.Error("the DaemonSet does not run in the network of every node")
	}
	if nodes.AutomountServiceAccountToken == nil || *nodes.AutomountServiceAccountToken {
		t.Error("the DaemonSet has a token, which it does not need")
	}
	if want := "--snapshot-cache=" + stateFolder + "/snapshot"; !slices.Contains(nodes.InitContainers[0].Args, want) {
		t.Errorf("no %s in %q", want, nodes.InitContainers[0].Args)
	}
	if policies.ServiceAccountName != uninstallerName {
		t.Errorf("the Job runs as %s", policies.ServiceAccountName)
	}
	checkBinding(t, uninstallFile, uninstallerName)
}

// checkRestricted checks that a container has these capabilities and no other privilege.
func checkRestricted(t *testing.T, s *corev1.SecurityContext, capabilities ...corev1.Capability) {
	t.Helper()
	if s == nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, capabilities) ||
		s.Privileged != nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Errorf("the security context is %v, want the capabilities %v and no other privilege", s, capabilities)
	}
}

// TestUninstallRights: the Job can take from the policies what the writer has put there.
func TestUninstallRights(t *testing.T) {
	want := []string{
		"networking.k8s.io/networkpolicies[] list,patch",
		"networking.k8s.io/networkpolicies/status[] patch",
		"policy.networking.k8s.io/adminnetworkpolicies[] list",
		"policy.networking.k8s.io/baselineadminnetworkpolicies[] list",
		"policy.networking.k8s.io/clusternetworkpolicies[] list",
		"policy.networking.k8s.io/adminnetworkpolicies/status[] patch",
		"policy.networking.k8s.io/baselineadminnetworkpolicies/status[] patch",
		"policy.networking.k8s.io/clusternetworkpolicies/status[] patch",
	}
	if got := rights(named[*rbacv1.ClusterRole](t, uninstallFile, uninstallerName).Rules); !slices.Equal(got, want) {
		t.Errorf("the cluster role gives %q, want %q", got, want)
	}
}
