package netns

import (
	"slices"
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
