package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metrics "github.com/prometheus/client_golang/prometheus"
	discovery "github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/prometheus"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// prometheusPage says what to add for a Prometheus. Its blocks of YAML are used as they stand.
const prometheusPage = "../../../docs/install/prometheus.md"

// TestPrometheusScrapesAsInstalled: with install.yaml as it stands, a Prometheus on another node finds the agent of a
// node and the status writer by the annotations of their pods, by the chart's PodMonitor and by the
// ServiceMonitor of the page, and scrapes both.
func TestPrometheusScrapesAsInstalled(t *testing.T) {
	labtest.Need(t)
	prometheus.Need(t, "prometheus")
	on(t, []*server{newest}, func(t *testing.T, plane *controlplane.ControlPlane) {
		install(t, plane)
		c := newCluster(t, plane)
		network, err := lab.New(t.Context(), lab.Config{Nodes: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network.Close)
		for _, node := range network.Nodes {
			forward(t, node, plane.Address())
		}
		agentPod := c.runAgentAsInstalled(plane, network.Nodes[0])
		writerPod := c.runWriterAsInstalled(plane, network.Nodes[1])
		c.serveMetricsOf(agentPod, writerPod)
		want := []string{"http://" + agentPod.Status.PodIP + ":9080/metrics up", "http://" + writerPod.Status.PodIP + ":9080/metrics up"}
		slices.Sort(want)

		server := prometheus.Start(t, network.Nodes[1], c.scrapeConfig(plane, agentPod.Name, writerPod.Name))
		eventually(t, func() string {
			found := map[string][]string{}
			for _, target := range server.Targets(t) {
				found[target.ScrapePool] = append(found[target.ScrapePool], strings.TrimSpace(target.ScrapeURL+" "+target.Health+" "+target.LastError))
			}
			for _, job := range []string{"pods", "PodMonitor", "ServiceMonitor"} {
				slices.Sort(found[job])
				if !slices.Equal(found[job], want) {
					return fmt.Sprintf("the targets of %s are %q, want %q", job, found[job], want)
				}
				if agents := server.Query(t, fmt.Sprintf("netpol_ready{job=%q, node=%q}", job, c.node)); len(agents) != 1 {
					return fmt.Sprintf("netpol_ready of %s is %v, want the agent's", job, agents)
				}
			}
			return ""
		})
	})
}

// runAgentAsInstalled runs the agent on a node of the lab with the arguments of the DaemonSet, and returns its pod.
func (c *cluster) runAgentAsInstalled(plane *controlplane.ControlPlane, node *lab.Node) *corev1.Pod {
	c.t.Helper()
	set := must[*appsv1.DaemonSet](c.t)(c.client.AppsV1().DaemonSets(namespace).Get(c.t.Context(), agent, metav1.GetOptions{}))
	args := c.argsAsInstalled(plane, agent, set.Spec.Template.Spec.Containers[0].Args)
	a, err := node.StartAgent(lab.AgentConfig{Binary: program(c.t, "kube-network-policies"), Args: args})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("log of the agent:\n%s", a.Log())
		}
		a.Kill() // before the folders are removed that it may write
	})
	return c.podOf(set.Spec.Template, agent, c.node, node)
}

// runWriterAsInstalled is the same for the status writer and its Deployment.
func (c *cluster) runWriterAsInstalled(plane *controlplane.ControlPlane, node *lab.Node) *corev1.Pod {
	c.t.Helper()
	deployment := must[*appsv1.Deployment](c.t)(c.client.AppsV1().Deployments(namespace).Get(c.t.Context(), statusWriter, metav1.GetOptions{}))
	prometheus.Run(c.t, node, program(c.t, "status-writer"), c.argsAsInstalled(plane, statusWriter, deployment.Spec.Template.Spec.Containers[0].Args)...)
	return c.podOf(deployment.Spec.Template, statusWriter, c.otherNode, node)
}

// argsAsInstalled returns arguments with what a kubelet and the pod's volumes would give them.
func (c *cluster) argsAsInstalled(plane *controlplane.ControlPlane, serviceAccount string, args []string) []string {
	c.t.Helper()
	folder := c.t.TempDir()
	config, _ := account(c.t, plane, namespace, serviceAccount)
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := controlplane.Kubeconfig(config, kubeconfig); err != nil {
		c.t.Fatal(err)
	}
	given := strings.NewReplacer("$(NODE_NAME)", c.node, "=/run/kube-network-policies/", "="+folder+"/", "=/var/lib/kube-network-policies/", "="+folder+"/")
	all := []string{"--kubeconfig=" + kubeconfig}
	for _, arg := range args {
		// The key of an init container is for other agents.
		if !strings.HasPrefix(arg, "--status-bind-address=") {
			all = append(all, given.Replace(arg))
		}
	}
	return all
}

// podOf writes the pod that a controller would make of a template, with the address of a node of the lab.
func (c *cluster) podOf(template corev1.PodTemplateSpec, name, nodeName string, node *lab.Node) *corev1.Pod {
	c.t.Helper()
	pods := c.client.CoreV1().Pods(namespace)
	template.Spec.NodeName = nodeName
	pod := must[*corev1.Pod](c.t)(pods.Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-" + nodeName, Labels: template.Labels, Annotations: template.Annotations},
		Spec:       template.Spec,
	}, metav1.CreateOptions{}))
	clean := context.WithoutCancel(c.t.Context())
	c.t.Cleanup(func() { _ = pods.Delete(clean, pod.Name, *metav1.NewDeleteOptions(0)) })
	address := node.Addr(lab.IPv4).String()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	return must[*corev1.Pod](c.t)(pods.UpdateStatus(c.t.Context(), pod, metav1.UpdateOptions{}))
}

// serveMetricsOf applies the Services of the page, with the EndpointSlices that a controller would write.
func (c *cluster) serveMetricsOf(pods ...*corev1.Pod) {
	c.t.Helper()
	port, portName := int32(9080), "metrics"
	for i, service := range yamlDocuments[corev1.Service](c.t, "Service") {
		if !maps.Equal(service.Spec.Selector, selectorOf(pods[i], service.Spec.Selector)) {
			c.t.Fatalf("the Service %s selects %v, want pods with %v", service.Name, service.Spec.Selector, pods[i].Labels)
		}
		must[*corev1.Service](c.t)(c.client.CoreV1().Services(namespace).Create(c.t.Context(), &service, metav1.CreateOptions{}))
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: service.Name, Labels: map[string]string{discoveryv1.LabelServiceName: service.Name, "app.kubernetes.io/name": service.Labels["app.kubernetes.io/name"]}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{pods[i].Status.PodIP}, NodeName: &pods[i].Spec.NodeName,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pods[i].Name},
			}},
		}
		must[*discoveryv1.EndpointSlice](c.t)(c.client.DiscoveryV1().EndpointSlices(namespace).Create(c.t.Context(), slice, metav1.CreateOptions{}))
		clean := context.WithoutCancel(c.t.Context())
		c.t.Cleanup(func() {
			_ = c.client.DiscoveryV1().EndpointSlices(namespace).Delete(clean, slice.Name, metav1.DeleteOptions{})
			_ = c.client.CoreV1().Services(namespace).Delete(clean, service.Name, metav1.DeleteOptions{})
		})
	}
}

// selectorOf returns the labels of a pod that a selector names.
func selectorOf(pod *corev1.Pod, selector map[string]string) map[string]string {
	labels := maps.Clone(pod.Labels)
	maps.DeleteFunc(labels, func(name, _ string) bool { _, named := selector[name]; return !named })
	return labels
}

// scrapeConfig returns the files of a Prometheus with the job of the page, and what the operator makes of the
// PodMonitor and the ServiceMonitor: their relabelings after its own choice of pods and endpoints. Debian's
// Prometheus is built without the discovery of Kubernetes, so the package of that runs here, and Prometheus reads
// what it finds from files.
func (c *cluster) scrapeConfig(plane *controlplane.ControlPlane, pods ...string) map[string]string {
	c.t.Helper()
	page := yamlDocuments[struct {
		Jobs []map[string]any `json:"scrape_configs"`
	}](c.t, "")
	if len(page) != 1 || len(page[0].Jobs) != 1 {
		c.t.Fatalf("%s has other jobs than one", prometheusPage)
	}
	jobs := []map[string]any{page[0].Jobs[0], monitorJob("PodMonitor", "pod", "pod_label_app_kubernetes_io_name", podMonitor(c.t)),
		monitorJob("ServiceMonitor", "endpointslice", "service_label_app_kubernetes_io_name", yamlDocuments[monitor](c.t, "ServiceMonitor")[0].Spec.Endpoints[0].Relabelings)}
	kubeconfig := filepath.Join(c.t.TempDir(), "kubeconfig")
	if err := controlplane.Kubeconfig(c.prometheusAccount(plane), kubeconfig); err != nil {
		c.t.Fatal(err)
	}
	files := map[string]string{}
	for _, job := range jobs {
		role := job["kubernetes_sd_configs"].([]any)[0].(map[string]any)["role"].(string)
		delete(job, "kubernetes_sd_configs")
		found := role + ".json"
		job["file_sd_configs"] = []any{map[string]any{"files": []string{found}}}
		files[found] = c.discover(kubeconfig, role, pods)
	}
	text, err := yaml.Marshal(map[string]any{"global": map[string]string{"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": jobs})
	if err != nil {
		c.t.Fatal(err)
	}
	files["prometheus.yml"] = string(text)
	return files
}

// discover returns the targets that a Prometheus finds by a role, once pods are among them, as a file of targets.
func (c *cluster) discover(kubeconfig, role string, pods []string) string {
	c.t.Helper()
	registry := metrics.NewRegistry()
	config := &discovery.SDConfig{Role: discovery.Role(role), KubeConfig: kubeconfig, NamespaceDiscovery: discovery.NamespaceDiscovery{Names: []string{namespace}}}
	finder := must[*discovery.Discovery](c.t)(discovery.New(nil, config.NewDiscovererMetrics(registry, nil), config))
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	updates := make(chan []*targetgroup.Group)
	go finder.Run(ctx, updates)
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var all []group
	missing := slices.Clone(pods)
	for len(missing) > 0 {
		select {
		case <-ctx.Done():
			c.t.Fatalf("the role %s finds no %q", role, missing)
		case groups := <-updates:
			for _, g := range groups {
				for _, target := range g.Targets {
					labels := map[string]string{}
					for name, value := range target.Merge(g.Labels) {
						labels[string(name)] = string(value)
					}
					all = append(all, group{[]string{labels["__address__"]}, labels})
					missing = slices.DeleteFunc(missing, func(pod string) bool { return pod == labels["__meta_kubernetes_pod_name"] })
				}
			}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// prometheusAccount returns the rights of a Prometheus that may find pods, and what the operator adds for Services.
func (c *cluster) prometheusAccount(plane *controlplane.ControlPlane) *rest.Config {
	c.t.Helper()
	admin := must[*kubernetes.Clientset](c.t)(kubernetes.NewForConfig(plane.Admin()))
	const name = "prometheus"
	must[*corev1.ServiceAccount](c.t)(admin.CoreV1().ServiceAccounts(c.namespace).Create(c.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	follow := []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.namespace + "-" + name}, Rules: []rbacv1.PolicyRule{
		{Verbs: follow, APIGroups: []string{""}, Resources: []string{"pods", "services"}},
		{Verbs: follow, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
	}}
	must[*rbacv1.ClusterRole](c.t)(admin.RbacV1().ClusterRoles().Create(c.t.Context(), role, metav1.CreateOptions{}))
	bind(c.t, admin, c.namespace, name, role.Name)
	return must[*rest.Config](c.t)(plane.ServiceAccount(c.t.Context(), c.namespace, name))
}

// monitor is what a PodMonitor or a ServiceMonitor says of targets.
type monitor struct {
	Spec struct {
		Endpoints           []endpoint `json:"endpoints"`
		PodMetricsEndpoints []endpoint `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type endpoint struct {
	Relabelings []relabeling `json:"relabelings"`
}

type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	Regex        string   `json:"regex"`
	TargetLabel  string   `json:"targetLabel"`
	Replacement  string   `json:"replacement"`
}

// podMonitor returns the relabelings of the chart's PodMonitor.
func podMonitor(t *testing.T) []relabeling {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("metrics: {podMonitor: {enabled: true}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	objects, _ := renderChart(t, values, "v1.37.0")
	for _, document := range objects {
		if strings.Contains(document, "\nkind: PodMonitor\n") {
			return decodeYAML[monitor](t, document).Spec.PodMetricsEndpoints[0].Relabelings
		}
	}
	t.Fatal("the chart has no PodMonitor")
	return nil
}

// monitorJob returns the job of a monitor for agents and status writer.
func monitorJob(name, role, label string, relabelings []relabeling) map[string]any {
	relabel := []any{map[string]any{"action": "keep", "source_labels": []string{"__meta_kubernetes_" + label}, "regex": agent + "|" + statusWriter}}
	for _, r := range relabelings {
		config := map[string]any{"source_labels": r.SourceLabels, "target_label": r.TargetLabel}
		if r.Regex != "" {
			config["regex"], config["replacement"] = r.Regex, r.Replacement
		}
		relabel = append(relabel, config)
	}
	return map[string]any{"job_name": name, "kubernetes_sd_configs": []any{map[string]any{"role": role}}, "relabel_configs": relabel}
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// yamlDocuments returns the documents of a kind in the page; without a kind those that are no objects.
func yamlDocuments[T any](t *testing.T, kind string) []T {
	t.Helper()
	page, err := os.ReadFile(prometheusPage)
	if err != nil {
		t.Fatal(err)
	}
	var found []T
	for _, block := range yamlBlock.FindAllSubmatch(page, -1) {
		for _, document := range strings.Split(string(block[1]), "\n---\n") {
			if decodeYAML[metav1.TypeMeta](t, document).Kind == kind {
				found = append(found, decodeYAML[T](t, document))
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no YAML of the kind %q", prometheusPage, kind)
	}
	return found
}

func decodeYAML[T any](t *testing.T, text string) T {
	t.Helper()
	var into T
	if err := yaml.Unmarshal([]byte(text), &into); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return into
}
