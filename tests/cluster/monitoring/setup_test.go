package monitoring

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/prometheus"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Where things listen on the node.
const (
	writerAddress    = "127.0.0.1:9081"
	apiServerAddress = "127.0.0.1:6443"
)

// policies isolate a pod. One of them cannot be enforced as written, and one is audited.
const policies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: web}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: wrong}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/99}}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: audited, annotations: {kube-network-policies.x-k8s.io/enforcement: audit}}
spec: {podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}, policyTypes: [Egress]}
`

// cluster is one or two nodes with agents in use, and a status writer on the first one.
type cluster struct {
	*labtest.Cluster
	node   *lab.Node // the first one
	agents []*lab.Agent
	http   *http.Client // of the node
}

// agentAddress returns where the agent of a node serves its metrics.
func (c *cluster) agentAddress(node int) string {
	return netip.AddrPortFrom(c.Nodes[node].Addr(lab.IPv4), 9080).String()
}

func start(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := &cluster{Cluster: labtest.NewCluster(t, nodes, "x/web@1 app=web", "x/client@1")}
	c.node = c.Nodes[0]
	c.http = prometheus.Client(c.node)
	c.Apply(t, "policies", policies)
	if nodes == 2 {
		c.CreatePods(t, "y/web@2 app=web", "y/client@2")
	}
	for n, node := range c.Nodes {
		c.agents = append(c.agents, c.StartOn(t, node, "--metrics-bind-address="+c.agentAddress(n)))
	}
	c.startWriter(t)
	c.Expect(t, labtest.Yes("x/client", "x/web", "tcp/80"), labtest.No("x/client", "x/web", "tcp/81"))
	wait(t, "metrics of the status writer", func() bool { return c.serves(t, writerAddress) })
	return c
}

// wait waits for a program that starts, on a busy machine too.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ReadyTimeout)
	defer cancel()
	if err := lab.Poll(ctx, func() (bool, error) { return condition(), nil }); err != nil {
		t.Errorf("no %s: %v", what, err)
	}
}

// startWriter starts a status writer with an API server that has one policy.
func (c *cluster) startWriter(t *testing.T) {
	t.Helper()
	api := statustest.NewServer(statustest.Behavior{})
	api.Create(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "web"}})
	listener, err := c.node.Listen(netip.MustParseAddrPort(apiServerAddress))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: api}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, kubeconfig, `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"users": [{"name": "u", "user": {}}], "clusters": [{"name": "c", "cluster": {"server": "http://`+apiServerAddress+`"}}]}`)
	writer, err := lab.Build(t.Context(), t.TempDir(), "status-writer")
	if err != nil {
		t.Fatal(err)
	}
	prometheus.Run(t, c.node, writer, "--kubeconfig="+kubeconfig, "--metrics-bind-address="+writerAddress)
}

func (c *cluster) serves(t *testing.T, address string) bool {
	response, err := c.get(t, "http://"+address+"/metrics")
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func (c *cluster) get(t *testing.T, url string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.http.Do(request)
}

// scrape returns the metrics that are served at an address of the node.
func (c *cluster) scrape(t *testing.T, address string) string {
	t.Helper()
	response, err := c.get(t, "http://"+address+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// startPrometheus starts a Prometheus on the node that scrapes the agent and the writer.
func (c *cluster) startPrometheus(t *testing.T) *prometheus.Server {
	t.Helper()
	rules, err := os.ReadFile(filepath.Join(files, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var agents []string
	for n := range c.Nodes {
		agents = append(agents, strconv.Quote(c.agentAddress(n)))
	}
	return prometheus.Start(t, c.node, map[string]string{"alerts.yaml": string(rules), "prometheus.yml": fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
rule_files: [alerts.yaml]
scrape_configs:
- job_name: agents
  static_configs: [{targets: [%s]}]
- job_name: status-writer
  static_configs: [{targets: [%q]}]
`, strings.Join(agents, ", "), writerAddress)})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
