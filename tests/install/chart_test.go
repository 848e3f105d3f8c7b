package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// notValues are flags that the chart sets by other values, that no pod of it needs, or that
// are alpha.
var notValues = []string{
	"admin-network-policy", "baseline-admin-network-policy", "cluster-network-policy", "feature-gates", "audit", // kinds, featureGates, audit
	"metrics-secure", "metrics-tls-cert-file", "metrics-tls-private-key-file", // metrics.secure
	"denials-port", "denials-ca-file", "denials-token-file", // statusWriter.denials
	"hostname-override", "probe-socket", "leader-elect-namespace", // the chart knows them
	"kubeconfig", "manifests", "cleanup", "cleanup-wait", "version", "help", // not in a pod of the chart
	"log-flush-frequency", "log-json-info-buffer-size", "log-json-split-stream", "log-text-info-buffer-size", "log-text-split-stream",
}

var flagLine = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)`)

// The chart has a value for each flag of the agent and of the status writer.
func TestChartHasEveryFlag(t *testing.T) {
	binary, err := lab.BuildAgent(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../charts/kube-network-policies/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]struct {
			Properties map[string]struct{ Properties map[string]any }
		}
	}
	var chart schema
	if err := json.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	for program, args := range map[string][]string{"agent": {"--help"}, "statusWriter": {"status-writer", "--help"}} {
		t.Run(program, func(t *testing.T) {
			help, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v: %s", args, err, help)
			}
			flags := chart.Properties[program].Properties["flags"].Properties
			if len(flags) == 0 {
				t.Errorf("the schema has no %s.flags", program)
			}
			for _, m := range flagLine.FindAllStringSubmatch(string(help), -1) {
				if _, ok := flags[m[1]]; !ok && !slices.Contains(notValues, m[1]) && (program != "statusWriter" || m[1] != "metrics-bind-address") {
					t.Errorf("the schema has no %s.flags.%s", program, m[1])
				}
			}
		})
	}
}
