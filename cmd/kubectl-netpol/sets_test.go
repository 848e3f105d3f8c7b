package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goodSets are manifests without known mistakes, by the files that are read together.
var goodSets = []struct{ name, files string }{
	{"[delivery](../cmd/kubectl-netpol/testdata/sets/delivery.yaml), in the shape of Argo CD", "cmd/kubectl-netpol/testdata/sets/delivery.yaml"},
	{"[monitoring](../cmd/kubectl-netpol/testdata/sets/monitoring.yaml), in the shape of kube-prometheus", "cmd/kubectl-netpol/testdata/sets/monitoring.yaml"},
	{"[online shop](../examples/online-shop/README.md), in the shape of Online Boutique", "examples/online-shop"},
	{"[example](../examples/README.md) `allow-dns.yaml`", "examples/cluster.yaml examples/allow-dns.yaml"},
	{"`audit.yaml`", "examples/cluster.yaml examples/audit.yaml"},
	{"`database.yaml`", "examples/cluster.yaml examples/database.yaml"},
	{"`default-deny.yaml`", "examples/cluster.yaml examples/default-deny.yaml"},
	{"`internet.yaml`", "examples/cluster.yaml examples/internet.yaml"},
	{"`internet.yaml`, with `allow-dns.yaml` and `default-deny.yaml`", "examples/cluster.yaml examples/internet.yaml examples/allow-dns.yaml examples/default-deny.yaml"},
	{"`metadata-service.yaml`", "examples/cluster.yaml examples/metadata-service.yaml"},
	{"`metrics.yaml`", "examples/cluster.yaml examples/metrics.yaml"},
	{"`monitoring.yaml`", "examples/cluster.yaml examples/monitoring.yaml"},
	{"`public.yaml`", "examples/cluster.yaml examples/public.yaml"},
	{"`same-namespace.yaml`", "examples/cluster.yaml examples/same-namespace.yaml"},
	{"`tenants.yaml`", "examples/cluster.yaml examples/tenants.yaml"},
}

// docs/lints.md has the number of findings in each good set.
func TestFindingsInGoodSets(t *testing.T) {
	const (
		begin = "<!-- The counts are written by go test ./cmd/kubectl-netpol -update. -->\n"
		end   = "<!-- The end of the counts. -->\n"
	)
	path, err := filepath.Abs("../../docs/lints.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..")
	table := "\n| set | policies | findings |\n| --- | --- | --- |\n"
	for _, set := range goodSets {
		_, stdout, stderr := call(t, "", "check -o json -f "+strings.Join(strings.Fields(set.files), " -f "))
		var r report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatalf("%s: %v %s", set.files, err, stderr)
		}
		table += fmt.Sprintf("| %s | %d | %s |\n", set.name, r.Policies, byRule(&r))
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(doc), begin)
	_, tail, found := strings.Cut(rest, end)
	want := head + begin + table + "\n" + end + tail
	switch {
	case !found:
		t.Fatalf("no place for the counts in %s", path)
	case string(doc) == want:
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the counts in %s are out of date; -update writes\n%s", path, table)
	}
}

// byRule counts findings by severity and rule.
func byRule(r *report) string {
	counts := map[string]int{}
	for _, f := range r.Findings {
		counts[fmt.Sprintf("%v `%s`", f.Severity, f.Rule)]++
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
