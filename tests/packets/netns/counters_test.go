package netns

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Names of metrics.
const (
	answered = "packet_count"
	failures = "netpol_failure_policy_packets_total"
)

// conntrackDrops returns how many packets a node dropped because its connection table was
// full. Every packet in a queue has an entry there.
func conntrackDrops(t *testing.T, node *lab.Node) int {
	t.Helper()
	text, err := node.ReadProc("stat/nf_conntrack")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	column := slices.Index(strings.Fields(lines[0]), "drop")
	sum := 0
	for _, line := range lines[1:] { // one line for each CPU, in hexadecimal
		drops, err := strconv.ParseInt(strings.Fields(line)[column], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += int(drops)
	}
	return sum
}

// reassemblyFailures returns how many packets a node could not reassemble.
func reassemblyFailures(t *testing.T, node *lab.Node) int {
	t.Helper()
	text6, err := node.ReadProc("snmp6")
	if err != nil {
		t.Fatal(err)
	}
	sum := snmp(t, node.Host, "Ip", "ReasmFails")
	for line := range strings.Lines(text6) {
		if fields := strings.Fields(line); fields[0] == "Ip6ReasmFails" {
			sum += labtest.Atoi(t, fields[1])
		}
	}
	return sum
}

// snmp returns a counter of the kernel for a protocol over IPv4.
func snmp(t *testing.T, host *lab.Host, protocol, name string) int {
	t.Helper()
	text, err := host.ReadProc("snmp")
	if err != nil {
		t.Fatal(err)
	}
	var names []string // two lines: names, then values
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case fields[0] != protocol+":":
		case names == nil:
			names = fields
		default:
			return labtest.Atoi(t, fields[slices.Index(names, name)])
		}
	}
	t.Fatalf("no %s of %s in\n%s", name, protocol, text)
	return 0
}
