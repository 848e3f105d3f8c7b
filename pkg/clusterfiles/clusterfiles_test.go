package clusterfiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// folder writes files into a new folder, which becomes the working directory.
func folder(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// read reads the standard input, in the default namespace of a context.
func read(t *testing.T, text string) *Objects {
	t.Helper()
	o, err := Read([]string{Stdin}, strings.NewReader(text), "")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

// names lists the objects in a line, sorted.
func (o *Objects) names() string {
	var s []string
	add := func(kind string, object compile.Object) {
		s = append(s, key{kind, object.GetNamespace(), object.GetName()}.String())
	}
	for _, n := range o.Namespaces {
		add("Namespace", n)
	}
	for _, n := range o.Nodes {
		add("Node", n)
	}
	for _, p := range o.Pods {
		add(workloads.Of(p).Kind, p)
	}
	for _, p := range o.Services {
		add("Service", p)
	}
	for _, p := range o.Policies {
		add(compile.KindOf(p).Name, p)
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}

const (
	denyAll  = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: deny\nspec:\n  podSelector: {}\n"
	template = "template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}\n"
	web      = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n  " + template
)

var cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: web}\nspec:\n  schedule: '@daily'\n  jobTemplate:\n    spec:\n      " +
	strings.ReplaceAll(template, "\n    ", "\n        ")

// of returns a workload of a kind with the name web.
func of(apiVersion, kind string) string {
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: web}\nspec:\n  " + template
}

func TestWorkloadsArePods(t *testing.T) {
	for kind, text := range map[string]string{
		"Deployment":            web,
		"StatefulSet":           of("apps/v1", "StatefulSet"),
		"DaemonSet":             of("apps/v1", "DaemonSet"),
		"ReplicaSet":            of("apps/v1", "ReplicaSet"),
		"ReplicationController": of("v1", "ReplicationController"),
		"Job":                   of("batch/v1", "Job"),
		"CronJob":               cron,
		"Pod":                   "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n",
	} {
		t.Run(kind, func(t *testing.T) {
			o, err := Read([]string{Stdin}, strings.NewReader(text), "shop")
			if err != nil {
				t.Fatal(err)
			}
			if got := o.names(); !strings.Contains(got, kind+" shop/web") || len(o.Pods) != 1 || len(o.Namespaces) != 1 {
				t.Fatalf("got %s", got)
			}
			p := o.Pods[0]
			port := p.Spec.Containers[0].Ports[0]
			if p.Labels["app"] != "web" || port.Name != "http" || port.Protocol != corev1.ProtocolTCP || p.Status.PodIPs[0].IP != "198.18.0.1" {
				t.Errorf("got %+v", p)
			}
			if (len(o.AssumedPods) == 1) != (kind != "Pod") {
				t.Errorf("assumed %v", o.AssumedPods)
			}
			where, ok := o.Position("Pod", "shop", "web", "spec.containers[0].ports[0]")
			if !ok || where.File != Stdin || where.Line < 2 {
				t.Errorf("ports at %v", where)
			}
		})
	}
}

// A workload has an assumed pod only if nothing else shows what its pods are.
func TestWorkloadsThatHavePods(t *testing.T) {
	owned := func(text, kind, owner string) string {
		return strings.Replace(text, "{name: web", "{name: web-5d8f9c7b6, labels: {pod-template-hash: 5d8f9c7b6}, ownerReferences: [{kind: "+kind+", name: "+owner+", controller: true}]", 1)
	}
	replicas := strings.ReplaceAll(owned(of("apps/v1", "ReplicaSet"), "Deployment", "web"), "{app: web}", "{app: web, pod-template-hash: 5d8f9c7b6}")
	pod := owned("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nstatus: {podIP: 10.0.0.1}\n", "ReplicaSet", "web-5d8f9c7b6")
	for name, tc := range map[string]struct{ text, want string }{
		"a pod":                        {web + "---\n" + pod, "Deployment default/web-5d8f9c7b6, Namespace default"},
		"a ReplicaSet":                 {replicas + "---\n" + web, "Deployment default/web, Namespace default"},
		"a ReplicaSet and a pod":       {replicas + "---\n" + web + "---\n" + pod, "Deployment default/web-5d8f9c7b6, Namespace default"},
		"a ReplicaSet without another": {replicas, "Deployment default/web-5d8f9c7b6, Namespace default"},
		"a Job of a CronJob by hand": {
			owned(of("batch/v1", "Job"), "CronJob", "backup") + "---\n" + strings.Replace(cron, "name: web", "name: backup", 1),
			"CronJob default/backup, Namespace default",
		},
		"two kinds of one name": {web + "---\n" + of("apps/v1", "StatefulSet"), "Deployment default/web, Namespace default, StatefulSet default/web-statefulset"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := read(t, tc.text).names(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestListsAreTheirItems(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a List":              {"apiVersion: v1\nkind: List\nitems:\n- " + indent(web) + "- " + indent(denyAll), "Deployment default/web, Namespace default, NetworkPolicy default/deny"},
		"a NetworkPolicyList": {"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nmetadata: {resourceVersion: '1'}\nitems:\n- metadata: {name: a}\n  spec: {podSelector: {}}\n- " + indent(denyAll), "Namespace default, NetworkPolicy default/a, NetworkPolicy default/deny"},
		"a PodList":           {"apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a, namespace: x}\n", "Namespace x, Pod x/a"},
		"a DeploymentList":    {"apiVersion: apps/v1\nkind: DeploymentList\nitems:\n- " + indent(web), "Deployment default/web, Namespace default"},
		"a list of others":    {"apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: a}}]\n---\n" + web, "Deployment default/web, Namespace default"},
		"an empty list":       {"apiVersion: v1\nkind: PodList\nitems: []\n---\n" + web, "Deployment default/web, Namespace default"},
		"null items":          {"apiVersion: v1\nkind: List\nitems: [null]\n---\n" + web, "Deployment default/web, Namespace default"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := read(t, tc.text).names(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// indent makes a document the item of a list.
func indent(document string) string {
	return strings.ReplaceAll(strings.TrimSuffix(document, "\n"), "\n", "\n  ") + "\n"
}

func TestDefaultsAreThoseOfTheAPI(t *testing.T) {
	o := read(t, denyAll+"  ingress: [{ports: [{port: 80}]}]\n  egress: [{ports: [{port: 53, protocol: UDP}]}]\n"+
		"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {team: a}}\n"+
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec: {ports: [{port: 80}, {port: 81, targetPort: http, protocol: UDP}]}\n")
	p := o.Policies[0].(*networkingv1.NetworkPolicy)
	if got := p.Spec.PolicyTypes; !slices.Equal(got, []networkingv1.PolicyType{"Ingress", "Egress"}) {
		t.Errorf("policyTypes %v", got)
	}
	if *p.Spec.Ingress[0].Ports[0].Protocol != "TCP" || *p.Spec.Egress[0].Ports[0].Protocol != "UDP" {
		t.Errorf("got %+v", p.Spec)
	}
	if o.Written("NetworkPolicy", "default", "deny", "spec.policyTypes") || !o.Written("NetworkPolicy", "default", "deny", "spec.egress[0].ports") {
		t.Error("what is written is not known")
	}
	if got := o.Namespaces[0].Labels; got["kubernetes.io/metadata.name"] != "default" || got["team"] != "a" {
		t.Errorf("labels %v", got)
	}
	s := o.Services[0].Spec
	if a, b := s.Ports[0], s.Ports[1]; s.Type != "ClusterIP" || a.Protocol != "TCP" || a.TargetPort.IntVal != 80 || b.Protocol != "UDP" || b.TargetPort.StrVal != "http" {
		t.Errorf("got %+v", s)
	}
}

func TestNamespaceOfTheCall(t *testing.T) {
	o, err := Read([]string{Stdin}, strings.NewReader(denyAll+"---\n"+strings.Replace(denyAll, "name: deny", "name: deny\n  namespace: other", 1)), "shop")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := o.names(), "Namespace other, Namespace shop, NetworkPolicy other/deny, NetworkPolicy shop/deny"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPolicyLikeKindsAreErrors(t *testing.T) {
	for what, meant := range map[string]string{
		"networking.k8s.io/v1 NetworkPolicie":                     `kind: "NetworkPolicie" of "networking.k8s.io/v1" is not known; did you mean NetworkPolicy of "networking.k8s.io/v1"?`,
		"networking.k8s.io/v1 networkpolicy":                      `kind: "networkpolicy" of "networking.k8s.io/v1" is not known; did you mean NetworkPolicy`,
		"networking.k8s.io/v1 NetworkPolicies":                    "did you mean NetworkPolicy of",
		"networking.k8s.io/v1 Anything":                           "is not known",
		"networking.k8s.io/v1beta1 NetworkPolicy":                 `only of "networking.k8s.io/v1"`,
		"extensions/v1beta1 NetworkPolicy":                        `only of "networking.k8s.io/v1"`,
		"extensions/v1beta1 Deployment":                           `only of "apps/v1"`,
		"v1 NetworkPolicy":                                        `apiVersion: NetworkPolicy of "v1" is not known; did you mean "networking.k8s.io/v1"?`,
		"networking/v1 NetworkPolicy":                             `did you mean "networking.k8s.io/v1"?`,
		"network.k8s.io/v1 NetworkPolicy":                         `did you mean "networking.k8s.io/v1"?`,
		"networking.k8s.oi/v1 NetworkPolicy":                      `did you mean "networking.k8s.io/v1"?`,
		"policy/v1 NetworkPolicy":                                 `did you mean "networking.k8s.io/v1"?`,
		"policy.networking.k8s.io/v1alpha1 Admin":                 "is not known",
		"policy.networking.k8s.io/v1alpha1 AdminNetworkpolicy":    "did you mean AdminNetworkPolicy of",
		"policy.networking.k8s.io/v1alpha1 ClusterNetworkPolicy":  `only of "policy.networking.k8s.io/v1alpha2"`,
		"policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicys": "did you mean ClusterNetworkPolicy of",
		"networking.k8s.io/v1alpha1 ClusterNetworkPolicy":         `did you mean "policy.networking.k8s.io/v1alpha2"?`,
		"a/b/c NetworkPolicy":                                     "apiVersion: unexpected GroupVersion string",
		"apps/v1beta2 Deployment":                                 `only of "apps/v1"`,
	} {
		t.Run(what, func(t *testing.T) {
			version, kind, _ := strings.Cut(what, " ")
			text := web + "---\napiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: a}\n"
			_, err := Read([]string{Stdin}, strings.NewReader(text), "")
			if err == nil || !strings.Contains(err.Error(), meant) || !strings.HasPrefix(err.Error(), "-:1") {
				t.Errorf("got %v, want %s", err, meant)
			}
		})
	}
}

func TestOtherKindsArePassedOverAndCounted(t *testing.T) {
	var text string
	for _, what := range []string{
		"v1 ConfigMap", "v1 ConfigMap", "v1 Secret", "policy/v1 PodDisruptionBudget", "networking.k8s.io/v1 Ingress", "networking.k8s.io/v1 IngressClass",
		"apiextensions.k8s.io/v1 CustomResourceDefinition", "projectcalico.org/v3 NetworkPolicy", "crd.antrea.io/v1beta1 ClusterNetworkPolicy",
		"cilium.io/v2 CiliumNetworkPolicy", "monitoring.coreos.com/v1 ServiceMonitor", "serving.knative.dev/v1 Service", "example.com/v1 AllowList",
	} {
		version, kind, _ := strings.Cut(what, " ")
		text += "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: a}\n---\n"
	}
	want := "Passed over: 1 AllowList (example.com), 1 CiliumNetworkPolicy (cilium.io), 1 ClusterNetworkPolicy (crd.antrea.io), 2 ConfigMap, " +
		"1 CustomResourceDefinition, 1 Ingress, 1 IngressClass, 1 NetworkPolicy (projectcalico.org), 1 PodDisruptionBudget, 1 Secret, " +
		"1 Service (serving.knative.dev), 1 ServiceMonitor (monitoring.coreos.com)"
	if got := read(t, text+denyAll).Notes(); len(got) != 1 || got[0] != want {
		t.Errorf("got %q\nwant %s", got, want)
	}
}

// What kubectl prints of a cluster has more than people write.
func TestWhatKubectlPrints(t *testing.T) {
	o := read(t, `apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata:
    annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
    creationTimestamp: "2026-01-02T03:04:05Z"
    generation: 2
    managedFields: [{apiVersion: networking.k8s.io/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}, manager: kubectl, operation: Apply, time: "2026-01-02T03:04:05Z"}]
    name: deny
    namespace: shop
    resourceVersion: "12"
    uid: 0d3f1c8e-0000-4000-8000-000000000000
  spec: {podSelector: {}, policyTypes: [Ingress]}
  status: {}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {creationTimestamp: null, name: web, namespace: shop}
  spec:
    selector: {matchLabels: {app: web}}
    strategy: {}
    template:
      metadata: {creationTimestamp: null, labels: {app: web}}
      spec: {containers: [{image: i, name: c, resources: {}}]}
  status: {}
`)
	if got, want := o.names(), "Deployment shop/web, Namespace shop, NetworkPolicy shop/deny"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// An install bundle repeats its namespace, and has much that is not looked at.
func TestInstallBundle(t *testing.T) {
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: operator\n  labels: {control-plane: operator}\n---\n"
	namespaced := func(text string) string {
		return strings.Replace(text, "metadata: {", "metadata: {namespace: operator, ", 1)
	}
	o := read(t, namespace+"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.com}\nspec: {anything: [1, {a: b}]}\n---\n"+
		namespace+namespaced(web)+"---\n# Source: bundle/templates/policy.yaml\n"+denyAll+"---\n---\n"+namespaced(web)+
		"---\napiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\n")
	if got, want := o.names(), "Deployment operator/web, Namespace default, Namespace operator, NetworkPolicy default/deny"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	want := []string{
		"Passed over: 1 CustomResourceDefinition, 1 ServiceAccount, 1 Thing (example.com)",
		"Assumed: one pod for each of 1 workload, as its template has it",
		"Assumed: addresses of 198.18.0.0/15 for 1 pod; nothing else in the files has such an address",
	}
	if got := o.Notes(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestAnObjectTwice(t *testing.T) {
	folder(t, map[string]string{
		"a.yaml": denyAll + "---\n" + web,
		"b.yaml": web + "---\n" + denyAll + "  policyTypes: [Ingress]\n", // which is the default
		"c.yaml": web + "---\n" + denyAll + "  policyTypes: [Egress]\n",
	})
	o, err := Read([]string{"a.yaml", "b.yaml", "a.yaml"}, nil, "")
	if err != nil || o.names() != "Deployment default/web, Namespace default, NetworkPolicy default/deny" {
		t.Errorf("got %v %v", o, err)
	}
	const want = "c.yaml:10: NetworkPolicy default/deny is already at a.yaml:1, and differs"
	if _, err := Read([]string{"."}, nil, ""); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
