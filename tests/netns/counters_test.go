package netns

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
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
	packets, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return packets
}
