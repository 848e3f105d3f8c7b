package netns

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// Names of metrics.
const (
	answered = "packet_count"
	failures = "netpol_failure_policy_packets_total"
)

// lostMetrics count the packets that the kernel dropped instead of queueing.
var lostMetrics = []string{"nfqueue_queue_dropped", "nfqueue_user_dropped"}

func metrics(t *testing.T, agent *lab.Agent) lab.Metrics {
	t.Helper()
	m, err := agent.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// denied is how many packets the agent has answered with no.
func denied(m lab.Metrics) float64 { return m.Sum(answered, "verdict", "drop") }

// lost is how many packets the queues had no room for.
func lost(m lab.Metrics) float64 {
	var sum float64
	for _, name := range lostMetrics {
		sum += m.Sum(name)
	}
	return sum
}

// until waits until a number read from the agent is what it should be, or more,
// and returns what it was last.
func until(t *testing.T, agent *lab.Agent, want float64, read func(lab.Metrics) float64) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
	defer cancel()
	var got float64
	lab.Poll(ctx, func() (bool, error) {
		got = read(metrics(t, agent))
		return got >= want, nil
	})
	return got
}

// counter counts packets that arrive at a node, before any of our hooks.
type counter struct{ node *lab.Node }

// newCounter counts what matches an nftables expression.
func newCounter(t *testing.T, node *lab.Node, match string) counter {
	t.Helper()
	table := fmt.Sprintf(`
table inet test {
	counter arrived { }
	chain prerouting {
		type filter hook prerouting priority -500
		%s counter name arrived
	}
}
`, match)
	if _, err := node.Run(t.Context(), table, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return counter{node}
}

var packetsOf = regexp.MustCompile(`packets (\d+)`)

func (c counter) packets(t *testing.T) int {
	t.Helper()
	text, err := c.node.Run(t.Context(), "", "nft", "list", "counter", "inet", "test", "arrived")
	if err != nil {
		t.Fatal(err)
	}
	found := packetsOf.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no packets in %q", text)
	}
	return atoi(t, found[1])
}

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

// needConntrack skips a test that fills more of the connection table than this
// machine has. Where skipping is forbidden, root can raise the limit.
func needConntrack(t *testing.T, entries int) {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	most := atoi(t, strings.TrimSpace(string(text)))
	switch {
	case most >= entries:
	case os.Getenv("NETNS_REQUIRED") != "":
		t.Fatalf("nf_conntrack_max is %d, and the test needs %d", most, entries)
	default:
		t.Skipf("nf_conntrack_max is %d, and the test needs %d", most, entries)
	}
}

// within waits until something is so, or a change had time to be in force.
func (c *cluster) within(t *testing.T, so func() bool) error {
	ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) { return so(), nil })
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
		sum += atoi(t, values[i])
	}
	for line := range strings.Lines(text6) {
		if fields := strings.Fields(line); fields[0] == "Ip6ReasmFails" {
			sum += atoi(t, fields[1])
		}
	}
	return sum
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
