package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// goodSets are manifests without known mistakes. The files of a set are read together. The
// findings in them are correct, for these reasons:
//
//   - Three policies of delivery allow every pod.
//   - Two policies of monitoring are for pods that an operator creates, and node-exporter uses
//     the network of its node.
//   - internet.yaml denies DNS without allow-dns.yaml.
//   - In the other sets the example isolates only some pods of a namespace.
var goodSets = []string{
	"cmd/kubectl-netpol/testdata/sets/delivery.yaml",
	"cmd/kubectl-netpol/testdata/sets/monitoring.yaml",
	"examples/online-shop",
	"examples/cluster.yaml examples/allow-dns.yaml",
	"examples/cluster.yaml examples/all-but-two-ports.yaml examples/node-ports.yaml examples/passive-ftp.yaml",
	"examples/cluster.yaml examples/audit.yaml",
	"examples/cluster.yaml examples/database.yaml",
	"examples/cluster.yaml examples/default-deny.yaml",
	"examples/cluster.yaml examples/internet.yaml",
	"examples/cluster.yaml examples/internet.yaml examples/allow-dns.yaml examples/default-deny.yaml",
	"examples/cluster.yaml examples/metadata-service.yaml",
	"examples/cluster.yaml examples/metrics.yaml",
	"examples/cluster.yaml examples/monitoring.yaml",
	"examples/cluster.yaml examples/public.yaml",
	"examples/cluster.yaml examples/same-namespace.yaml",
	"examples/cluster.yaml examples/tenants.yaml",
}

// testdata/sets/findings.txt has the findings in each good set. Users switch off a linter with
// false alarms.
func TestFindingsInGoodSets(t *testing.T) {
	const golden = "cmd/kubectl-netpol/testdata/sets/findings.txt"
	t.Chdir("../..")
	got := ""
	for _, files := range goodSets {
		_, stdout, stderr := call(t, "", "check -o json -f "+strings.Join(strings.Fields(files), " -f "))
		var r report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatalf("%s: %v %s", files, err, stderr)
		}
		got += fmt.Sprintf("%s: policies: %d, findings: %s\n", files, r.Policies, byRule(&r))
	}
	want, err := os.ReadFile(golden)
	switch {
	case string(want) == got:
	case *update:
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is out of date (%v): make docs\n%s", golden, err, got)
	}
}

// byRule counts findings by severity and rule.
func byRule(r *report) string {
	counts := map[string]int{}
	for _, f := range r.Findings {
		counts[fmt.Sprintf("%v %s", f.Severity, f.Rule)]++
	}
	var parts []string
	for _, rule := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[rule], rule))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
