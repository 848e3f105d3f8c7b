package edges

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
	const name = "netpol-uninstall"
	inSystem := func(args ...string) {
		t.Helper()
		kubectl(t, append([]string{"-n", "kube-system"}, args...)...)
	}
	inSystem("delete", "lease", "netpol-status")
	inSystem("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name in (netpol-agent,netpol-status)", "--timeout="+patience.String())
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
