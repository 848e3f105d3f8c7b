package clusterfiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// folder writes files into a new folder and makes it the working directory.
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

// read reads text from standard input. The namespace of objects without one is "".
func read(t *testing.T, text string) *Objects {
	t.Helper()
	o, err := Read([]string{Stdin}, strings.NewReader(text), Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

// names lists the objects in one line, sorted.
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

// webOf returns a workload of the given kind named web.
func webOf(apiVersion, kind string) string {
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: web}\nspec:\n  " + template
}

func TestWorkloadsArePods(t *testing.T) {
	for kind, text := range map[string]string{
		"Deployment":            web,
		"StatefulSet":           webOf("apps/v1", "StatefulSet"),
		"DaemonSet":             webOf("apps/v1", "DaemonSet"),
		"ReplicaSet":            webOf("apps/v1", "ReplicaSet"),
		"ReplicationController": webOf("v1", "ReplicationController"),
		"Job":                   webOf("batch/v1", "Job"),
		"CronJob":               cron,
		"Pod":                   "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n",
	} {
		t.Run(kind, func(t *testing.T) {
			o, err := Read([]string{Stdin}, strings.NewReader(text), Options{Namespace: "shop"})
			if err != nil {
				t.Fatal(err)
			}
			if got := o.names(); !strings.Contains(got, kind+" shop/web") || len(o.Pods) != 1 || len(o.Namespaces) != 1 {
				t.Fatalf("got %s", got)
			}
			p := o.Pods[0]
			port := p.Spec.Containers[0].Ports[0]
			if p.Labels["app"] != "web" || port.Name != "http" || port.Protocol != corev1.ProtocolTCP || p.Status.PodIPs[0].IP != "0.0.0.1" {
				t.Errorf("got %+v", p)
			}
			if (len(o.AssumedPods) == 1) != (kind != "Pod") {
				t.Errorf("assumed %v", o.AssumedPods)
			}

			position, ok := o.Position("Pod", "shop", "web", "spec.containers[0].ports[0]")
			if !ok || position.File != Stdin || position.Line < 2 {
				t.Errorf("ports at %v", position)
			}
		})
	}
}

// A workload gets an assumed pod only if no other object shows its pods.
func TestWorkloadsThatHavePods(t *testing.T) {
	owned := func(text, kind, owner string) string {
		return strings.Replace(text, "{name: web", "{name: web-5d8f9c7b6, labels: {pod-template-hash: 5d8f9c7b6}, ownerReferences: [{kind: "+kind+", name: "+owner+", controller: true}]", 1)
	}
	replicas := strings.ReplaceAll(owned(webOf("apps/v1", "ReplicaSet"), "Deployment", "web"), "{app: web}", "{app: web, pod-template-hash: 5d8f9c7b6}")
	pod := owned("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nstatus: {podIP: 10.0.0.1}\n", "ReplicaSet", "web-5d8f9c7b6")
	for name, tc := range map[string]struct{ text, want string }{
		"a pod":                        {web + "---\n" + pod, "Deployment default/web-5d8f9c7b6, Namespace default"},
		"a ReplicaSet":                 {replicas + "---\n" + web, "Deployment default/web, Namespace default"},
		"a ReplicaSet and a pod":       {replicas + "---\n" + web + "---\n" + pod, "Deployment default/web-5d8f9c7b6, Namespace default"},
		"a ReplicaSet without another": {replicas, "Deployment default/web-5d8f9c7b6, Namespace default"},
		"a Job of a CronJob by hand": {
			owned(webOf("batch/v1", "Job"), "CronJob", "backup") + "---\n" + strings.Replace(cron, "name: web", "name: backup", 1),
			"CronJob default/backup, Namespace default",
		},
		"two kinds of one name": {web + "---\n" + webOf("apps/v1", "StatefulSet"), "Deployment default/web, Namespace default, StatefulSet default/web-statefulset"},
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

// indent turns a document into the item of a list.
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
		t.Error("a field that the file sets is not Written")
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
	o, err := Read([]string{Stdin}, strings.NewReader(denyAll+"---\n"+strings.Replace(denyAll, "name: deny", "name: deny\n  namespace: other", 1)), Options{Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := o.names(), "Namespace other, Namespace shop, NetworkPolicy other/deny, NetworkPolicy shop/deny"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPolicyLikeKindsAreErrors(t *testing.T) {
	for what, meant := range map[string]string{
		"networking.k8s.io/v1 NetworkPolicie":                    `kind: "NetworkPolicie" of "networking.k8s.io/v1" is not known; did you mean NetworkPolicy of "networking.k8s.io/v1"?`,
		"networking.k8s.io/v1 networkpolicy":                     `kind: "networkpolicy" of "networking.k8s.io/v1" is not known; did you mean NetworkPolicy`,
		"networking.k8s.io/v1 NetworkPolicies":                   "did you mean NetworkPolicy of",
		"networking.k8s.io/v1 Anything":                          "is not known",
		"networking.k8s.io/v1beta1 NetworkPolicy":                `only of "networking.k8s.io/v1"`,
		"extensions/v1beta1 NetworkPolicy":                       `only of "networking.k8s.io/v1"`,
		"extensions/v1beta1 Deployment":                          `only of "apps/v1"`,
		"v1 NetworkPolicy":                                       `apiVersion: NetworkPolicy of "v1" is not known; did you mean "networking.k8s.io/v1"?`,
		"networking/v1 NetworkPolicy":                            `did you mean "networking.k8s.io/v1"?`,
		"network.k8s.io/v1 NetworkPolicy":                        `did you mean "networking.k8s.io/v1"?`,
		"networking.k8s.oi/v1 NetworkPolicy":                     `did you mean "networking.k8s.io/v1"?`,
		"policy/v1 NetworkPolicy":                                `did you mean "networking.k8s.io/v1"?`,
		"policy.networking.k8s.io/v1alpha1 Admin":                "is not known",
		"policy.networking.k8s.io/v1alpha1 AdminNetworkpolicy":   "did you mean AdminNetworkPolicy of",
		"policy.networking.k8s.io/v1alpha1 ClusterNetworkPolicy": `only of "policy.networking.k8s.io/v1beta1" or "policy.networking.k8s.io/v1alpha2": write it as "policy.networking.k8s.io/v1beta1"`,
		"policy.networking.k8s.io/v1 ClusterNetworkPolicy":       `write it as "policy.networking.k8s.io/v1beta1"`,
		"policy.networking.k8s.io/v1beta1 ClusterNetworkPolicys": "did you mean ClusterNetworkPolicy of",
		"networking.k8s.io/v1alpha1 ClusterNetworkPolicy":        `did you mean "policy.networking.k8s.io/v1beta1"?`,
		"a/b/c NetworkPolicy":                                    "apiVersion: unexpected GroupVersion string",
		"apps/v1beta2 Deployment":                                `only of "apps/v1"`,
	} {
		t.Run(what, func(t *testing.T) {
			version, kind, _ := strings.Cut(what, " ")
			text := web + "---\napiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: a}\n"
			_, err := Read([]string{Stdin}, strings.NewReader(text), Options{Strict: true})
			if err == nil || !strings.Contains(err.Error(), meant) || !strings.HasPrefix(err.Error(), "-:1") {
				t.Errorf("got %v, want %s", err, meant)
			}
		})
	}
}

// Workloads and the rest of the cluster, too, are not passed over because their version is wrong.
func TestWrongVersionsAreErrors(t *testing.T) {
	for what, want := range map[string]string{
		"app/v1 Deployment":                 `-:10: apiVersion: Deployment of "app/v1" is not known; did you mean "apps/v1"?`,
		"v1 Deployment":                     `-:10: apiVersion: Deployment of "v1" is not known; did you mean "apps/v1"?`,
		"v2 Pod":                            `-:10: apiVersion: Pod of "v2" is not read, only of "v1"`,
		"apps/v1 Pod":                       `-:10: apiVersion: Pod of "apps/v1" is not known; did you mean "v1"?`,
		"core/v1 Service":                   `-:10: apiVersion: Service of "core/v1" is not known; did you mean "v1"?`,
		"apps.k8s.io/v1 DaemonSet":          `-:10: apiVersion: DaemonSet of "apps.k8s.io/v1" is not known; did you mean "apps/v1"?`,
		"apps/v1 CronJob":                   `-:10: apiVersion: CronJob of "apps/v1" is not known; did you mean "batch/v1"?`,
		"batch/v1beta1 CronJob":             `-:10: apiVersion: CronJob of "batch/v1beta1" is not read, only of "batch/v1"`,
		"apps/v1 deployment":                `-:11: kind: "deployment" of "apps/v1" is not known; did you mean Deployment of "apps/v1"?`,
		"apps/v1 Deploymnt":                 `-:11: kind: "Deploymnt" of "apps/v1" is not known; did you mean Deployment of "apps/v1"?`,
		"v1 Namespaces":                     `-:11: kind: "Namespaces" of "v1" is not known; did you mean Namespace of "v1"?`,
		"serving.knative.dev/v1 Service":    "",
		"longhorn.io/v1beta2 Node":          "",
		"batch.volcano.sh/v1alpha1 Job":     "",
		"apps.kruise.io/v1alpha1 DaemonSet": "",
		"jobset.x-k8s.io/v1 Job":            "",
		"apps/v1 ControllerRevision":        "",
		"v1 PodTemplate":                    "",
	} {
		t.Run(what, func(t *testing.T) {
			version, kind, _ := strings.Cut(what, " ")
			for form, text := range map[string]string{
				"object": "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: a}\n",
				"item":   "apiVersion: v1\nkind: List\nitems:\n- apiVersion: " + version + "\n  kind: " + kind + "\n  metadata: {name: a}\n",
				"typed":  "apiVersion: " + version + "\nkind: " + kind + "List\nitems:\n- metadata: {name: a}\n",
			} {
				_, err := Read([]string{Stdin}, strings.NewReader(web+"---\n"+text), Options{Strict: true})
				_, at, _ := strings.Cut(want, ": ") // lines differ
				if form == "object" {
					at = want
				}
				if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), at)) {
					t.Errorf("%s: got %v, want %s", form, err, at)
				}
			}
		})
	}
}

// ReadValid has the rest of what API servers refuse in part.
func TestReadValid(t *testing.T) {
	text := web + "---\n" + denyAll + "---\n" + strings.Replace(denyAll, "name: deny", "name: other", 1) + "  ingres: []\n  egres: 1\n---\napiVersion: app/v1\nkind: Deployment\nmetadata: {name: b}\n"
	o, refused, err := ReadValid([]string{Stdin}, strings.NewReader(text), Options{Namespace: "shop"})
	if err != nil || len(o.Policies) != 1 || len(o.Pods) != 1 {
		t.Fatal(o, err)
	}
	var got []string
	for _, r := range refused {
		got = append(got, r.Kind+" "+r.Namespace+"/"+r.Name+" "+r.Error())
	}
	if len(got) != 3 || !strings.HasPrefix(got[0], "NetworkPolicy shop/other -:24: ") || !strings.HasPrefix(got[2], "Deployment shop/b -:26: apiVersion: ") {
		t.Errorf("got %q", got)
	}
	if _, _, err := ReadValid([]string{Stdin, "missing.yaml"}, strings.NewReader(text), Options{}); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("got %v", err)
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
	want := "Passed over: 1 AllowList (example.com), 1 CiliumNetworkPolicy (cilium.io), 1 ClusterNetworkPolicy (crd.antrea.io), 2 ConfigMaps, " +
		"1 CustomResourceDefinition, 1 NetworkPolicy (projectcalico.org), 1 PodDisruptionBudget, 1 Secret, " +
		"1 Service (serving.knative.dev), 1 ServiceMonitor (monitoring.coreos.com)"
	if got := read(t, text+denyAll).Notes(); len(got) != 1 || got[0] != want {
		t.Errorf("got %q\nwant %s", got, want)
	}
}

// kubectl prints more fields of a cluster's objects than people write; the reader accepts
// them.
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

// An install bundle repeats its namespace and contains many kinds that are not read.
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
	}
	if got := o.Notes(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestAnObjectTwice(t *testing.T) {
	folder(t, map[string]string{
		"a.yaml": denyAll + "---\n" + web,
		"b.yaml": web + "---\n" + denyAll + "  policyTypes: [Ingress]\n", // the default
		"c.yaml": web + "---\n" + denyAll + "  policyTypes: [Egress]\n",
	})
	o, err := Read([]string{"a.yaml", "b.yaml", "a.yaml"}, nil, Options{})
	if err != nil || o.names() != "Deployment default/web, Namespace default, NetworkPolicy default/deny" {
		t.Errorf("got %v %v", o, err)
	}
	const want = "c.yaml:10: NetworkPolicy default/deny is already at a.yaml:1, and differs"
	if o, err := Read([]string{"."}, nil, Options{}); err != nil || !slices.Equal(o.Warnings, []string{want + ": the first one counts"}) {
		t.Errorf("got %v %q, want %s", err, o.Warnings, want)
	}
	if _, refused, err := ReadValid([]string{"."}, nil, Options{}); err != nil || len(refused) != 1 || refused[0].Error() != want {
		t.Errorf("got %v %v, want %s", err, refused, want)
	}
	if _, err := Read([]string{"."}, nil, Options{Strict: true}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// What kubectl reads, and what a chart renders beside its policies, does not keep policies from being read.
func TestWhatKubectlReads(t *testing.T) {
	chart := "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	folder(t, map[string]string{
		"a.yaml":                       web + "---# the policy\n" + denyAll + "---#\n" + strings.ReplaceAll(web, "web", "db"),
		"chart/Chart.yaml":             chart,
		"chart/templates/notes.yaml":   "{{/* */}}a: b: c\n",
		"chart/templates/values.yaml":  "apiVersion: v1\nmetadata: {name: {{ .Release.Name }}}\n",
		"chart/templates/policy.yaml":  denyAll,
		"chart/templates/z/panel.yaml": "kind: Panel\n",
		"t.yaml": "apiVersion: template.openshift.io/v1\nkind: Template\nmetadata: {name: a}\nobjects:\n- " + strings.ReplaceAll(strings.TrimSpace(denyAll), "\n", "\n  ") + "\n" +
			"---\napiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: a}\nspec: {rules: [{generate: {kind: NetworkPolicy, name: a}}]}\n" +
			"---\napiVersion: crd.projectcalico.org/v1\nkind: NetworkPolicy\nmetadata: {name: a}\n",
	})
	for path, want := range map[string]string{
		"a.yaml": "Deployment default/db, Deployment default/web, Namespace default, NetworkPolicy default/deny",
		"chart":  "Namespace default, NetworkPolicy default/deny",
	} {
		if o, err := Read([]string{path}, nil, Options{}); err != nil || o.names() != want {
			t.Errorf("%s: got %v %v, want %s", path, o, err, want)
		}
	}
	_, err := Read([]string{"t.yaml"}, nil, Options{})
	if err == nil || !strings.Contains(err.Error(), "1 NetworkPolicy (in ClusterPolicy), 1 NetworkPolicy (in Template)") {
		t.Errorf("got %v", err)
	}
}

// A ClusterNetworkPolicy is read in each of its versions, and is one object in both.
func TestVersionsOfAClusterNetworkPolicy(t *testing.T) {
	policy := func(version, name string) string {
		return "apiVersion: policy.networking.k8s.io/" + version + "\nkind: ClusterNetworkPolicy\nmetadata: {name: " + name + "}\n" +
			"spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{namespaces: {}}]}]}\n"
	}
	folder(t, map[string]string{
		"a.yaml": policy("v1beta1", "a") + "---\n" + policy("v1alpha2", "b"),
		"b.yaml": policy("v1beta1", "b") + "---\n" + policy("v1alpha2", "b"),
	})
	o, err := Read([]string{"a.yaml"}, nil, Options{})
	if err != nil || o.names() != "ClusterNetworkPolicy a, ClusterNetworkPolicy b" {
		t.Errorf("got %v %v", o, err)
	}
	const want = "b.yaml:1: ClusterNetworkPolicy b of version v1beta1 is already at a.yaml:6 as v1alpha2, and is the same object: remove one of them"
	if _, err := Read([]string{"."}, nil, Options{Strict: true}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
