package integration

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/prometheus"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// agentMetrics is where the agent serves its metrics on its node.
const agentMetrics = "127.0.0.1:9080"

// A Prometheus whose account may get /metrics scrapes an agent on a node over TLS; other
// clients are refused. The agent has the rights that the chart gives it.
func TestPrometheusScrapesAgentSecurely(t *testing.T) {
	labtest.Need(t)
	prometheus.Need(t, "prometheus")
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		install(t, plane)
		allowSecureMetrics(t, plane)
		c := newCluster(t, plane)
		network, err := lab.New(t.Context(), lab.Config{Nodes: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network.Close)
		node := network.Nodes[0]
		forward(t, node, plane.Address())
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		config, _ := account(t, plane, namespace, agent)
		if err := controlplane.Kubeconfig(config, kubeconfig); err != nil {
			t.Fatal(err)
		}
		a, err := node.StartAgent(lab.AgentConfig{
			Binary: program(t, "kube-network-policies"), Metrics: netip.MustParseAddrPort(agentMetrics),
			Args: []string{"--kubeconfig=" + kubeconfig, "--hostname-override=" + c.node, "--metrics-tls=self-signed"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of the agent:\n%s", a.Log())
			}
			a.Kill() // before the folders are removed that it may write
		})
		server := prometheus.Start(t, node, map[string]string{
			"prometheus.yml": scrapes,
			"reader":         tokenOf(t, plane, c.namespace, "reader", true),
			"other":          tokenOf(t, plane, c.namespace, "other", false),
		})
		eventually(t, func() string {
			var jobs []string
			for _, target := range server.Targets(t) {
				jobs = append(jobs, strings.TrimSpace(target.ScrapePool+": "+target.Health+" "+target.LastError))
			}
			slices.Sort(jobs)
			want := []string{
				"anonymous: down server returned HTTP status 401 Unauthorized",
				"other: down server returned HTTP status 403 Forbidden",
				"reader: up",
			}
			if !slices.Equal(jobs, want) {
				return fmt.Sprintf("the targets are %q, want %q", jobs, want)
			}
			if got := server.Query(t, "netpol_ready"); len(got) != 1 || got[0].Metric["job"] != "reader" || got[0].Value.Value != 1 {
				return fmt.Sprintf("netpol_ready is %v, want 1 for the reader alone", got)
			}
			return ""
		})
	})
}

// scrapes are three jobs that differ in their token. The agent's certificate is its own.
const scrapes = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs:
- job_name: reader
  scheme: https
  tls_config: {insecure_skip_verify: true}
  authorization: {credentials_file: reader}
  static_configs: [{targets: ["` + agentMetrics + `"]}]
- job_name: other
  scheme: https
  tls_config: {insecure_skip_verify: true}
  authorization: {credentials_file: other}
  static_configs: [{targets: ["` + agentMetrics + `"]}]
- job_name: anonymous
  scheme: https
  tls_config: {insecure_skip_verify: true}
  static_configs: [{targets: ["` + agentMetrics + `"]}]
`

// allowSecureMetrics gives the agent the rights that the chart adds for --metrics-tls,
// for one test.
func allowSecureMetrics(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("metrics: {secure: {enabled: true}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	objects, _ := renderChart(t, values, "v1.37.0")
	rights := slices.DeleteFunc(objects, func(document string) bool {
		return !strings.Contains(document, "\n  name: "+agent+"-metrics\n")
	})
	if len(rights) != 2 {
		t.Fatalf("the chart has %d objects for --metrics-tls, want a role and a binding: %q", len(rights), rights)
	}
	newKubectl(t, plane.Admin()).apply(strings.Join(rights, "\n---\n"))
}

// tokenOf makes a service account and returns its token. A reader may get /metrics.
func tokenOf(t *testing.T, plane *controlplane.ControlPlane, namespace, name string, reader bool) string {
	t.Helper()
	admin := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(plane.Admin()))
	must[*corev1.ServiceAccount](t)(admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	if reader {
		role := &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}}},
		}
		must[*rbacv1.ClusterRole](t)(admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}))
		bind(t, admin, namespace, name, role.Name)
	}
	return must[*rest.Config](t)(plane.ServiceAccount(t.Context(), namespace, name)).BearerToken
}

// forward makes an address of this machine reachable from a node, until the node is closed.
func forward(t *testing.T, node *lab.Node, address string) {
	t.Helper()
	listener, err := node.Listen(netip.MustParseAddrPort(address))
	if err != nil {
		t.Fatal(err)
	}
	go relay(listener, func() (net.Conn, error) { return net.Dial("tcp", address) })
}

// relay forwards connections to the listener until it is closed.
func relay(listener net.Listener, dial func() (net.Conn, error)) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := dial()
			if err != nil {
				return
			}
			defer to.Close()
			go func() {
				defer from.Close()
				io.Copy(from, to)
			}()
			io.Copy(to, from)
		}()
	}
}
