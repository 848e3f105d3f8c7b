// Package install checks what the install files give to the agent and to the
// status writer.
package install

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
)

// The names of all objects of the one and of the other.
const (
	agentName  = "netpol-agent"
	writerName = "netpol-status"

	writerProgram = "status-writer" // in the image
)

const (
	installFile = "install.yaml"
	adminFile   = "install-anp.yaml"
	guardFile   = "install-writer-guard.yaml"
)

// forEachInstall runs a test of the files that install all.
func forEachInstall(t *testing.T, test func(t *testing.T, file string)) {
	for _, file := range []string{installFile, adminFile} {
		t.Run(file, func(t *testing.T) { test(t, file) })
	}
}

// decode reads a file. A field that the API does not know is an error.
func decode(t *testing.T, file string) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile("../../../../" + file)
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

// named returns the one object of type T with that name.
func named[T interface {
	runtime.Object
	metav1.Object
}](t *testing.T, file, name string) T {
	t.Helper()
	var found []T
	for _, object := range decode(t, file) {
		if object, ok := object.(T); ok && object.GetName() == name {
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d objects of type %T and name %s, want 1", file, len(found), *new(T), name)
	}
	return found[0]
}

// agent returns the DaemonSet's pod and its one container.
func agent(t *testing.T, file string) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	return only(t, named[*appsv1.DaemonSet](t, file, agentName).Spec.Template.Spec)
}

// only returns a pod and its one container.
func only(t *testing.T, pod corev1.PodSpec) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want 1", len(pod.Containers))
	}
	return pod, pod.Containers[0]
}

// checkBinding checks that the ClusterRole of that name is bound to the ServiceAccount
// of that name and to no other subject.
func checkBinding(t *testing.T, file, name string) {
	t.Helper()
	account, binding := named[*corev1.ServiceAccount](t, file, name), named[*rbacv1.ClusterRoleBinding](t, file, name)
	if binding.RoleRef.Name != name || binding.RoleRef.Kind != "ClusterRole" {
		t.Errorf("the binding refers to %v, want the role %s", binding.RoleRef, name)
	}
	if want := subjects(account); !slices.Equal(binding.Subjects, want) {
		t.Errorf("the binding is for %v, want %v", binding.Subjects, want)
	}
}

func subjects(account *corev1.ServiceAccount) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
}

func TestAgentRights(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		want := []string{"/namespaces", "/nodes", "/pods", "networking.k8s.io/networkpolicies"}
		if file == adminFile {
			want = append(want, "policy.networking.k8s.io/adminnetworkpolicies", "policy.networking.k8s.io/baselineadminnetworkpolicies", "policy.networking.k8s.io/clusternetworkpolicies")
		}
		checkReads(t, named[*rbacv1.ClusterRole](t, file, agentName).Rules, want)
		checkBinding(t, file, agentName)
		account, pod := named[*corev1.ServiceAccount](t, file, agentName), named[*appsv1.DaemonSet](t, file, agentName)
		if pod.Namespace != account.Namespace || pod.Spec.Template.Spec.ServiceAccountName != account.Name {
			t.Errorf("the pods are %s/%s's, want %s/%s's", pod.Namespace, pod.Spec.Template.Spec.ServiceAccountName, account.Namespace, account.Name)
		}
		// They read the one Lease that says which status writer may ask them.
		const lease = agentName + "-lease"
		role, binding := named[*rbacv1.Role](t, file, lease), named[*rbacv1.RoleBinding](t, file, lease)
		if got, want := rights(role.Rules), []string{"coordination.k8s.io/leases[" + tlskey.Lease + "] get"}; !slices.Equal(got, want) {
			t.Errorf("the role gives %q, want %q", got, want)
		}
		if binding.RoleRef.Name != lease || !slices.Equal(binding.Subjects, subjects(account)) || role.Namespace != account.Namespace || binding.Namespace != account.Namespace {
			t.Errorf("the role %s/%s is bound in %s as %v to %v", role.Namespace, role.Name, binding.Namespace, binding.RoleRef, binding.Subjects)
		}
	})
}

// checkReads checks that rules grant the right to read these resources, and no other
// right.
func checkReads(t *testing.T, rules []rbacv1.PolicyRule, want []string) {
	t.Helper()
	var resources []string
	for _, rule := range rules {
		if !slices.Equal(rule.Verbs, []string{"list", "watch"}) {
			t.Errorf("verbs %q on %v", rule.Verbs, rule.Resources)
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				resources = append(resources, group+"/"+resource)
			}
		}
	}
	slices.Sort(resources)
	if !slices.Equal(resources, want) {
		t.Errorf("the role reads %v, want %v", resources, want)
	}
}

// TestAgentKey: where others ask the agent, an init container makes its key, and can write nothing but
// that.
func TestAgentKey(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		pod, container := agent(t, file)
		if len(pod.InitContainers) != 1 {
			t.Fatalf("%d init containers, want the one that makes the key", len(pod.InitContainers))
		}
		if !slices.Contains(container.Args, "--status-bind-address=:9082") {
			t.Errorf("the agent has the arguments %q", container.Args)
		}
		init := pod.InitContainers[0]
		if init.Image != container.Image || !slices.Equal(init.Args, []string{"key"}) || len(init.Command) != 0 {
			t.Errorf("it runs %s %v %v", init.Image, init.Command, init.Args)
		}
		if s := init.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) != 0 {
			t.Errorf("security context %+v", s)
		}
		if m := init.VolumeMounts; len(m) != 1 || m[0].Name != "run" || m[0].MountPath != filepath.Dir(tlskey.File) {
			t.Errorf("volumes %v, want the folder of %s", m, tlskey.File)
		}
		for _, v := range pod.Volumes {
			if v.Name == "run" && (v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumMemory) {
				t.Error("the key is on a disk")
			}
		}
		if writer := named[*appsv1.Deployment](t, file, "netpol-status"); len(writer.Spec.Template.Spec.InitContainers) != 0 {
			t.Error("the status writer has init containers")
		}
	})
}

func TestAgentSecurityContext(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		pod, container := agent(t, file)
		if !pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("hostNetwork %v, hostPID %v, hostIPC %v; want the network alone", pod.HostNetwork, pod.HostPID, pod.HostIPC)
		}
		checkVolumes(t, pod, container)
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
	})
}

// stateFolder is where the agent keeps its state on the node, the only folder of the node
// that it may write to.
const stateFolder = "/var/lib/kube-network-policies"

// checkVolumes checks that the agent has empty directories with a limit, and two folders of
// the node, which need not exist: one to read, and its own.
func checkVolumes(t *testing.T, pod corev1.PodSpec, container corev1.Container) {
	t.Helper()
	readOnly := map[string]bool{filepath.Dir(cniresults.DefaultDir): true, stateFolder: false}
	create := corev1.HostPathDirectoryOrCreate
	folders := map[string]string{} // of the node, by the name of the volume
	for _, v := range pod.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
			continue
		}
		if v.HostPath == nil {
			t.Errorf("volume %s is no empty directory with a limit, and no folder of the node: %v", v.Name, v.VolumeSource)
			continue
		}
		folders[v.Name] = v.HostPath.Path
		if diff := cmp.Diff(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.HostPath.Path, Type: &create}}, v.VolumeSource); diff != "" {
			t.Errorf("volume %s differs, -want +got:\n%s", v.Name, diff)
		}
	}
	mounted := map[string]bool{}
	for _, m := range container.VolumeMounts {
		if folder, ok := folders[m.Name]; ok {
			mounted[folder] = m.ReadOnly
			if m.MountPath != folder {
				t.Errorf("%s of the node is mounted at %s", folder, m.MountPath)
			}
		}
	}
	if diff := cmp.Diff(readOnly, mounted); diff != "" {
		t.Errorf("folders of the node that are mounted, and whether to be read only, differ, -want +got:\n%s", diff)
	}
	if want := "--snapshot-cache=" + stateFolder + "/snapshot"; !slices.Contains(container.Args, want) {
		t.Errorf("no %s in %q", want, container.Args)
	}
}

func TestAgentScheduling(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		pod, container := agent(t, file)
		if pod.PriorityClassName != "system-node-critical" {
			t.Errorf("priority class %q", pod.PriorityClassName)
		}
		if want := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}; !slices.Equal(pod.Tolerations, want) {
			t.Errorf("tolerations %v, want every taint", pod.Tolerations)
		}
		if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() || len(container.Resources.Limits) != 0 {
			t.Errorf("resources %v, want requests and no limits", container.Resources)
		}
		update := named[*appsv1.DaemonSet](t, file, agentName).Spec.UpdateStrategy
		if update.Type != appsv1.RollingUpdateDaemonSetStrategyType || update.RollingUpdate.MaxSurge.IntValue() != 1 || update.RollingUpdate.MaxUnavailable.IntValue() != 0 {
			t.Errorf("update strategy %v, want the new agent before the old one ends, one node at a time", update)
		}
		if len(container.Ports) != 0 {
			t.Errorf("ports %v: two agents with ports cannot be on one node", container.Ports)
		}
	})
}

func TestAgentProbesAndMetrics(t *testing.T) {
	forEachInstall(t, func(t *testing.T, file string) {
		pod, container := agent(t, file)
		var socket string
		for _, arg := range container.Args {
			if value, ok := strings.CutPrefix(arg, "--probe-socket="); ok {
				socket = value
			}
		}
		inOwnVolume := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == path.Dir(socket) && slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Name == m.Name && v.EmptyDir != nil
			})
		})
		if !inOwnVolume {
			t.Errorf("the probe socket %q is not in a volume of its own: %v, %v", socket, container.VolumeMounts, pod.Volumes)
		}
		for endpoint, probe := range map[string]*corev1.Probe{"livez": container.LivenessProbe, "readyz": container.ReadinessProbe} {
			want := []string{entrypoint(t), "probe", "--probe-socket=" + socket, endpoint}
			if probe == nil || probe.Exec == nil || !slices.Equal(probe.Exec.Command, want) {
				t.Errorf("probe %v, want %v", probe, want)
			}
		}
	})
}

// entrypoint returns the program of the image, which is the last stage.
func entrypoint(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("../../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^ENTRYPOINT \["([^"]+)"\]$`).FindAllSubmatch(content, -1)
	if m == nil {
		t.Fatal("no ENTRYPOINT in the Dockerfile")
	}
	return string(m[len(m)-1][1])
}

// TestFlagsExist asks the programs themselves for their flags.
func TestFlagsExist(t *testing.T) {
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../../../..", "-o", folder+"/", "./cmd/...")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, said)
	}
	forEachInstall(t, func(t *testing.T, file string) {
		_, container := agent(t, file)
		checkFlags(t, filepath.Join(folder, "kube-network-policies"), container.Args)
		if container.Env[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName" || !slices.Contains(container.Args, "--hostname-override=$("+container.Env[0].Name+")") {
			t.Errorf("arguments %v do not set the name of the node", container.Args)
		}
		_, container = writer(t, file)
		if !slices.Equal(container.Command, []string{writerProgram}) {
			t.Fatalf("the writer's command is %q", container.Command)
		}
		checkFlags(t, filepath.Join(folder, writerProgram), container.Args)
	})
}

func checkFlags(t *testing.T, binary string, args []string) {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), binary, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v: %s", binary, err, help)
	}
	for _, arg := range args {
		flag, _, _ := strings.Cut(arg, "=")
		if !strings.Contains(string(help), flag+" ") {
			t.Errorf("%s has no flag %s", filepath.Base(binary), flag)
		}
	}
}

// What is built and what builds it is named by content: a tag may be moved.
func TestImagesAndActionsArePinned(t *testing.T) {
	action := regexp.MustCompile(`(?m)uses: \S+@[0-9a-f]{40} # v\d`)
	for file, pinned := range map[string]*regexp.Regexp{
		"Dockerfile":                    regexp.MustCompile(`(?m)^ARG \w+_IMAGE=\S+@sha256:[0-9a-f]{64}$`),
		".github/workflows/test.yaml":   action,
		".github/workflows/e2e.yml":     action,
		".github/workflows/npa.yml":     action,
		".github/workflows/release.yml": action,
	} {
		t.Run(file, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join("../../../..", file))
			if err != nil {
				t.Fatal(err)
			}
			named := regexp.MustCompile(`(?m)^ARG \w+_IMAGE=|^FROM (?:--\S+ )?[^-$\s]|uses: `).FindAllString(string(content), -1)
			named = slices.DeleteFunc(named, func(line string) bool { return line == "FROM s" }) // scratch is no image
			if len(named) == 0 || len(pinned.FindAllString(string(content), -1)) != len(named) {
				t.Errorf("%s names %d images or actions, and these are pinned: %q", file, len(named), pinned.FindAllString(string(content), -1))
			}
		})
	}
}
