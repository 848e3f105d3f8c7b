package edges

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The author of a policy sees what of it is not enforced. API servers refuse what is
// wrong in itself: here the status writer has a feature switched off.
func TestStatusOfAPolicy(t *testing.T) {
	needAgent(t)
	const (
		writer     = "deployment/kube-network-policies-status"
		conditions = "kube-network-policies.x-k8s.io/conditions"
		line       = "kube-network-policies.x-k8s.io/not-enforced"
	)
	rolledOut := func() {
		kubectl(t, "-n", "kube-system", "rollout", "status", writer, "--timeout="+patience.String())
	}
	kubectl(t, "-n", "kube-system", "patch", writer, "--type", "json", "-p",
		`[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--feature-gates=EndPort=false"}]`)
	defer func() {
		kubectl(t, "-n", "kube-system", "rollout", "undo", writer)
		rolledOut()
	}()
	rolledOut()
	namespace := newNamespace(t)
	policy(t, namespace, "one", `{podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: 32000, endPort: 32767}]}]}`)
	eventually(t, "conditions", func() error {
		for _, command := range [][]string{{"get", "-o", "yaml"}, {"describe"}} {
			text := kubectl(t, append([]string{"-n", namespace, command[0], "networkpolicy/one"}, command[1:]...)...)
			for _, want := range []string{conditions, line, "spec.ingress[0].ports[0].endPort"} {
				if !strings.Contains(text, want) {
					return fmt.Errorf("kubectl %s has no %s:\n%s", command[0], want, text)
				}
			}
		}
		return nil
	})
}

// conditionalMetrics are there only with what their documentation says.
var conditionalMetrics = []string{
	"netpol_audit_packets_total",                                                     // audited policies
	"netpol_dns_addresses", "netpol_dns_answers_total", "netpol_dns_evictions_total", // domain names in policies
	"netpol_dns_queries_total", "netpol_dns_resolvers",
	"netpol_findings",                     // policies with parts that are not enforced
	"netpol_kind_served",                  // administrators' kinds
	"netpol_manifest_errors",              // --manifests
	"netpol_startup_taint_removals_total", // --startup-taint
}

// A Prometheus that scrapes agents and status writer, whose metrics agent.sh has opened, has
// every metric that docs/metrics.md describes. Debian's cannot find pods itself.
func TestPrometheusFindsEveryMetric(t *testing.T) {
	needAgent(t)
	binary := os.Getenv("EDGES_PROMETHEUS")
	if _, err := os.Stat(binary); err != nil {
		t.Skip("no Prometheus: ", err)
	}
	var pods struct {
		Items []struct {
			Metadata struct{ DeletionTimestamp string }
			Status   struct{ PodIP string }
		}
	}
	if err := json.Unmarshal([]byte(kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name in (kube-network-policies, kube-network-policies-status)", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, p := range pods.Items {
		// One of an earlier installation may still end.
		if p.Metadata.DeletionTimestamp == "" {
			targets = append(targets, fmt.Sprintf("%q", net.JoinHostPort(p.Status.PodIP, "9080")))
		}
	}
	if len(targets) < 3 {
		t.Fatalf("found %v: not two agents and a status writer", targets)
	}
	folder := t.TempDir()
	configuration := filepath.Join(folder, "prometheus.yml")
	err := os.WriteFile(configuration, fmt.Appendf(nil, `
global: {scrape_interval: 2s}
scrape_configs: [{job_name: pods, static_configs: [{targets: [%s]}]}]
`, strings.Join(targets, ", ")), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	const address = "127.0.0.1:19090"
	server := exec.Command("../cluster/run.sh", "cp", binary, "--config.file="+configuration, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address)
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := os.Create(filepath.Join(out, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	server.Stdout, server.Stderr = output, output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Kill(-server.Process.Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		_ = server.Wait() // it was killed
	})
	query := func(path string, into any) error {
		output, err := attempt("cp", "curl", "-gsS", "-m", "10", "http://"+address+path)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(output), into)
	}
	eventually(t, "targets that are up", func() error {
		var result struct {
			Data struct{ Result []struct{ Value []any } }
		}
		if err := query("/api/v1/query?query=up==1", &result); err != nil {
			return err
		}
		if len(result.Data.Result) < len(targets) {
			return fmt.Errorf("%d of %v are up", len(result.Data.Result), targets)
		}
		return nil
	})
	document, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, found := range regexp.MustCompile("`((?:netpol|nfqueue|packet|kube_network_policies)_[a-z_]+)`").FindAllStringSubmatch(string(document), -1) {
		documented[found[1]] = true
	}
	eventually(t, "metrics", func() error {
		var names struct{ Data []string }
		if err := query("/api/v1/label/__name__/values", &names); err != nil {
			return err
		}
		var missing []string
		for name := range documented {
			has := func(suffix string) bool { return slices.Contains(names.Data, name+suffix) }
			if !has("") && !has("_bucket") && !has("_count") && !slices.Contains(conditionalMetrics, name) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			slices.Sort(missing)
			return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
		}
		return nil
	})
	t.Logf("%d metrics are documented, %d of them are there under conditions that this cluster does not meet", len(documented), len(conditionalMetrics))
}

// Removed as docs/operations.md describes it, the agent leaves nothing on the nodes:
// their nftables, settings and rules are what they were before it was installed. The
// marks of connections end with these. Afterwards it is installed again.
func TestRemovalLeavesNothing(t *testing.T) {
	needAgent(t)
	before := map[string]string{"n1": tracesBefore(t, "n1"), "n2": tracesBefore(t, "n2")}
	// Pods that policies select, and connections between them.
	newField(t)

	removeAgent(t)
	defer installAgent(t)
	for node, traces := range before {
		if diff := cmp.Diff(strings.Split(traces, "\n"), strings.Split(tracesNow(t, node), "\n")); diff != "" {
			t.Errorf("%s differs from what it was before:\n%s", node, diff)
		}
	}
}

// tracesBefore returns what a node was like before it had an agent.
func tracesBefore(t *testing.T, node string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(state, node, "traces"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func tracesNow(t *testing.T, node string) string {
	t.Helper()
	output, err := exec.Command("../cluster/traces.sh", node).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

// manifest is what the cluster's agents were installed by.
var manifest = os.Getenv("EDGES_MANIFEST")

func installAgent(t *testing.T) {
	t.Helper()
	if output, err := exec.Command("../cluster/agent.sh", filepath.Base(manifest)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

// removeAgent removes the agents from the cluster, and what they have left, by the steps
// of docs/operations.md.
func removeAgent(t *testing.T) {
	t.Helper()
	kubectl(t, "delete", "-f", manifest, "--wait=true", "--timeout="+patience.String())
	kubectl(t, "delete", "--ignore-not-found", "-f", inRepository("install-writer-guard.yaml"), "--wait=true", "--timeout="+patience.String())
	removeLeftovers(t)
}

// removeLeftovers does the steps after the manifests were deleted, which the chart's hook does
// otherwise.
func removeLeftovers(t *testing.T) {
	t.Helper()
	const name = "kube-network-policies-uninstall"
	inSystem := func(args ...string) {
		t.Helper()
		kubectl(t, append([]string{"-n", "kube-system"}, args...)...)
	}
	inSystem("delete", "lease", "kube-network-policies-status")
	inSystem("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name in (kube-network-policies,kube-network-policies-status)", "--timeout="+patience.String())
	kubectl(t, "apply", "-f", inRepository("uninstall.yaml"))
	inSystem("rollout", "status", "daemonset", name, "--timeout="+patience.String())
	inSystem("wait", "--for=condition=complete", "job/"+name, "--timeout="+patience.String())
	kubectl(t, "delete", "-f", inRepository("uninstall.yaml"), "--wait=true", "--timeout="+patience.String())
	agentsEnded(t)
}

// inRepository returns the path of a file beside manifest.
func inRepository(name string) string { return filepath.Join(filepath.Dir(manifest), name) }

func agentsEnded(t *testing.T) {
	t.Helper()
	eventually(t, "end of the agents", func() error {
		for _, node := range []string{"n1", "n2"} {
			if output, err := attempt(node, "pgrep", "-x", "kube-network-po"); err == nil {
				return fmt.Errorf("%s: pid %s", node, output)
			}
		}
		return nil
	})
}
