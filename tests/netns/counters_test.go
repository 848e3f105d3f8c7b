package netns

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// Names of metrics.
const (
	answered = "packet_count"
	failures = "netpol_failure_policy_packets_total"
)

// conntrackDrops is how many packets a node dropped because its connection table
// was full: every packet that waits in a queue has an entry.
func conntrackDrops(t *testing.T, node *lab.Node) int {
	t.Helper()
	text, err := node.ReadProc("stat/nf_conntrack")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	column := slices.Index(strings.Fields(lines[0]), "drop")
	sum := 0
	for _, line := range lines[1:] { // one for each CPU, in hexadecimal
		drops, err := strconv.ParseInt(strings.Fields(line)[column], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += int(drops)
	}
	return sum
}

// reassemblyFailures is how many packets a node could not put together.
func reassemblyFailures(t *testing.T, node *lab.Node) int {
	t.Helper()
	text4, err := node.ReadProc("snmp")
	if err != nil {
		t.Fatal(err)
	}
	text6, err := node.ReadProc("snmp6")
	if err != nil {
		t.Fatal(err)
	}
	var names, values []string // two lines: names, then values
	for line := range strings.Lines(text4) {
		if strings.HasPrefix(line, "Ip:") {
			names, values = values, strings.Fields(line)
		}
	}
	sum := 0
	if i := slices.Index(names, "ReasmFails"); i >= 0 {
		sum += labtest.Atoi(t, values[i])
	}
	for line := range strings.Lines(text6) {
		if fields := strings.Fields(line); fields[0] == "Ip6ReasmFails" {
			sum += labtest.Atoi(t, fields[1])
		}
	}
	return sum
}
