package install

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// writer returns the Deployment's pod and its one container.
func writer(t *testing.T, file string) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	return only(t, named[*appsv1.Deployment](t, file, writerName).Spec.Template.Spec)
}

// rights writes rules as "group/resource[names] verbs".
func rights(rules []rbacv1.PolicyRule) []string {
	var out []string
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			out = append(out, fmt.Sprintf("%s/%s%v %s", strings.Join(rule.APIGroups, ","), resource, rule.ResourceNames, strings.Join(rule.Verbs, ",")))
		}
	}
	return out
}

func TestWriterRights(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		want := []string{
			"networking.k8s.io/networkpolicies[] list,watch,patch",
			"networking.k8s.io/networkpolicies/status[] patch",
			"/namespaces[] list,watch", // an annotation may have their policies audited
			"events.k8s.io/events[] create",
			"/nodes[] list,watch",
		}
		if file == adminFile {
			want = append(want,
				"policy.networking.k8s.io/adminnetworkpolicies[] list,watch",
				"policy.networking.k8s.io/baselineadminnetworkpolicies[] list,watch",
				"policy.networking.k8s.io/clusternetworkpolicies[] list,watch",
				"policy.networking.k8s.io/adminnetworkpolicies/status[] patch",
				"policy.networking.k8s.io/baselineadminnetworkpolicies/status[] patch",
				"policy.networking.k8s.io/clusternetworkpolicies/status[] patch",
			)
		}
		if got := rights(named[*rbacv1.ClusterRole](t, file, writerName).Rules); !slices.Equal(got, want) {
			t.Errorf("the cluster role gives %q, want %q", got, want)
		}
		checkBinding(t, file, writerName)

		role, binding := named[*rbacv1.Role](t, file, writerName), named[*rbacv1.RoleBinding](t, file, writerName)
		if got, want := rights(role.Rules), []string{
			"coordination.k8s.io/leases[] create",
			"coordination.k8s.io/leases[" + status.LeaseName + "] get,update",
			"/pods[] list,watch",
		}; !slices.Equal(got, want) {
			t.Errorf("the role gives %q, want %q", got, want)
		}
		account := named[*corev1.ServiceAccount](t, file, writerName)
		if binding.RoleRef.Name != role.Name || !slices.Equal(binding.Subjects, subjects(account)) || role.Namespace != account.Namespace {
			t.Errorf("the role %s/%s is bound as %v to %v", role.Namespace, role.Name, binding.RoleRef, binding.Subjects)
		}
		pod, _ := writer(t, file)
		if pod.ServiceAccountName != account.Name {
			t.Errorf("the pod is %s's, want %s's", pod.ServiceAccountName, account.Name)
		}
		// The Lease is in the namespace of the pod.
		if namespace := named[*appsv1.Deployment](t, file, writerName).Namespace; namespace != role.Namespace {
			t.Errorf("the pod is in %s, and its role in %s", namespace, role.Namespace)
		}
	})
}

func TestWriterPod(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		pod, container := writer(t, file)
		if pod.HostNetwork || pod.HostPID || pod.HostIPC || len(pod.Volumes) != 0 {
			t.Error("the writer has something of the node")
		}
		security := container.SecurityContext
		if security == nil || security.Capabilities == nil || !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(security.Capabilities.Add) != 0 ||
			*security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || !*pod.SecurityContext.RunAsNonRoot ||
			pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("security contexts %+v and %+v", pod.SecurityContext, security)
		}
		_, agentContainer := agent(t, file)
		if container.Image != agentContainer.Image {
			t.Errorf("image %s, the agent's is %s", container.Image, agentContainer.Image)
		}
		for path, probe := range map[string]*corev1.Probe{"/livez": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != container.Ports[0].Name {
				t.Errorf("no probe of %s: %v", path, probe)
			}
		}
		agents := named[*appsv1.DaemonSet](t, file, agentName).Spec.Selector.MatchLabels
		for key, value := range named[*appsv1.Deployment](t, file, writerName).Spec.Template.Labels {
			if agents[key] == value {
				t.Errorf("the DaemonSet selects the writer by %s=%s", key, value)
			}
		}
	})
}

// Everyone reads the metrics of the writer, and nothing else is open to pods.
func TestWriterOpensItsMetricsAlone(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		policy := named[*networkingv1.NetworkPolicy](t, file, writerName)
		pods := named[*appsv1.Deployment](t, file, writerName).Spec.Template
		if policy.Namespace != metav1.NamespaceSystem || !maps.Equal(policy.Spec.PodSelector.MatchLabels, pods.Labels) ||
			!slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) || len(policy.Spec.Ingress) != 1 {
			t.Fatalf("the policy of %s is %+v, want one rule for pods with %v", policy.Namespace, policy.Spec, pods.Labels)
		}
		rule := policy.Spec.Ingress[0]
		if len(rule.From) != 0 || len(rule.Ports) != 1 || rule.Ports[0].Port.String() != pods.Spec.Containers[0].Ports[0].Name {
			t.Errorf("the rule is %+v, want the port of the metrics from everyone", rule)
		}
	})
}

func TestWriterGuard(t *testing.T) {
	guard := named[*admissionv1.ValidatingAdmissionPolicy](t, guardFile, writerName)
	binding := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, guardFile, writerName)
	account := named[*corev1.ServiceAccount](t, installFile, writerName)
	if binding.Spec.PolicyName != guard.Name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the binding is %+v", binding.Spec)
	}
	if *guard.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("the guard lets pass what it cannot check")
	}
	user := fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", account.Namespace, account.Name)
	if c := guard.Spec.MatchConditions; len(c) != 1 || c[0].Expression != user {
		t.Errorf("the guard is for %v, want %s", c, user)
	}
	ours := fmt.Sprintf("['%s', '%s', '%s']", status.Annotation, status.SummaryAnnotation, status.RemovedAnnotation)
	if v := guard.Spec.Variables; len(v) == 0 || v[0].Name != "ours" || v[0].Expression != ours {
		t.Errorf("the writer's annotations are %v, want %s", v, ours)
	}
}
