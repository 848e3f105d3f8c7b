// Package install checks what install.yaml gives to the agent.
package install

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// decode reads install.yaml. A field that the API does not know is an error.
func decode(t *testing.T) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile("../../install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	var objects []runtime.Object
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		objects = append(objects, object)
	}
	return objects
}

// only returns the one object of type T.
func only[T runtime.Object](t *testing.T) T {
	t.Helper()
	var found []T
	for _, object := range decode(t) {
		if object, ok := object.(T); ok {
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		t.Fatalf("install.yaml has %d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}

// agent returns the DaemonSet's pod and its one container.
func agent(t *testing.T) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	pod := only[*appsv1.DaemonSet](t).Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
		t.Fatalf("%d containers and %d init containers, want 1 and 0", len(pod.Containers), len(pod.InitContainers))
	}
	return pod, pod.Containers[0]
}

func TestTheAgentMayOnlyReadWhatPolicyNeeds(t *testing.T) {
	role := only[*rbacv1.ClusterRole](t)
	var resources []string
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				t.Errorf("verb %q on %v", verb, rule.Resources)
			}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				resources = append(resources, group+"/"+resource)
			}
		}
	}
	slices.Sort(resources)
	if want := []string{"/namespaces", "/nodes", "/pods", "networking.k8s.io/networkpolicies"}; !slices.Equal(resources, want) {
		t.Errorf("the role reads %v, want %v", resources, want)
	}

	account, binding, pod := only[*corev1.ServiceAccount](t), only[*rbacv1.ClusterRoleBinding](t), only[*appsv1.DaemonSet](t)
	if binding.RoleRef.Name != role.Name || binding.RoleRef.Kind != "ClusterRole" {
		t.Errorf("the binding refers to %v, want the role %s", binding.RoleRef, role.Name)
	}
	subject := rbacv1.Subject{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}
	if !slices.Equal(binding.Subjects, []rbacv1.Subject{subject}) {
		t.Errorf("the binding is for %v, want %v", binding.Subjects, subject)
	}
	if pod.Namespace != account.Namespace || pod.Spec.Template.Spec.ServiceAccountName != account.Name {
		t.Errorf("the pods are %s/%s's, want %s/%s's", pod.Namespace, pod.Spec.Template.Spec.ServiceAccountName, account.Namespace, account.Name)
	}
}

func TestTheAgentHasOneCapabilityAndNoMore(t *testing.T) {
	pod, container := agent(t)
	if !pod.HostNetwork || pod.HostPID || pod.HostIPC || len(pod.Volumes) != 0 {
		t.Errorf("hostNetwork %v, hostPID %v, hostIPC %v, %d volumes; want the network and nothing else of the node",
			pod.HostNetwork, pod.HostPID, pod.HostIPC, len(pod.Volumes))
	}
	security := container.SecurityContext
	if security == nil || security.Capabilities == nil {
		t.Fatal("no security context with capabilities")
	}
	if got := security.Capabilities.Drop; !slices.Equal(got, []corev1.Capability{"ALL"}) {
		t.Errorf("capabilities dropped: %v, want ALL", got)
	}
	if got := security.Capabilities.Add; !slices.Equal(got, []corev1.Capability{"NET_ADMIN"}) {
		t.Errorf("capabilities added: %v, want NET_ADMIN", got)
	}
	if security.Privileged != nil && *security.Privileged {
		t.Error("privileged")
	}
	if security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation {
		t.Error("privilege escalation is not forbidden")
	}
	if security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
		t.Error("the root file system is not read-only")
	}
	if pod.SecurityContext == nil || pod.SecurityContext.SeccompProfile == nil ||
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("seccomp is not RuntimeDefault")
	}
}

func TestTheAgentRunsOnEveryNodeBeforeAndLongerThanOthers(t *testing.T) {
	pod, container := agent(t)
	if pod.PriorityClassName != "system-node-critical" {
		t.Errorf("priority class %q", pod.PriorityClassName)
	}
	if want := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}; !slices.Equal(pod.Tolerations, want) {
		t.Errorf("tolerations %v, want every taint", pod.Tolerations)
	}
	if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() || len(container.Resources.Limits) != 0 {
		t.Errorf("resources %v, want requests and no limits", container.Resources)
	}
	update := only[*appsv1.DaemonSet](t).Spec.UpdateStrategy
	if update.Type != appsv1.RollingUpdateDaemonSetStrategyType || update.RollingUpdate.MaxUnavailable.IntValue() != 1 {
		t.Errorf("update strategy %v, want one node at a time", update)
	}
}

func TestProbesAskTheEndpointsOfTheAgent(t *testing.T) {
	_, container := agent(t)
	for path, probe := range map[string]*corev1.Probe{"/livez": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != container.Ports[0].Name {
			t.Errorf("no probe of %s: %v", path, probe)
		}
	}
	port := container.Ports[0].ContainerPort
	if want := "--metrics-bind-address=:9080"; port != 9080 || !slices.Contains(container.Args, want) {
		t.Errorf("port %d and arguments %v, want 9080 and %s", port, container.Args, want)
	}
	annotations := only[*appsv1.DaemonSet](t).Spec.Template.Annotations
	if annotations["prometheus.io/scrape"] != "true" || annotations["prometheus.io/port"] != "9080" {
		t.Errorf("annotations %v do not tell Prometheus where to scrape", annotations)
	}
}

// TestTheAgentKnowsTheFlags asks the agent itself for its flags.
func TestTheAgentKnowsTheFlags(t *testing.T) {
	binary, err := lab.BuildAgent(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), binary, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("--help: %v: %s", err, help)
	}
	_, container := agent(t)
	for _, arg := range container.Args {
		flag, _, _ := strings.Cut(arg, "=")
		if !strings.Contains(string(help), flag+" ") {
			t.Errorf("the agent has no flag %s", flag)
		}
	}
	if container.Env[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName" || !slices.Contains(container.Args, "--hostname-override=$("+container.Env[0].Name+")") {
		t.Errorf("arguments %v do not tell the node's name", container.Args)
	}
}
