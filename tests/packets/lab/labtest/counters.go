package labtest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Metrics reads the metrics of an agent.
func Metrics(t *testing.T, agent *lab.Agent) lab.Metrics {
	t.Helper()
	m, err := agent.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Denied returns how many packets the agent's verdicts have dropped.
func Denied(m lab.Metrics) float64 { return m.Sum("packet_count", "verdict", "drop") }

// Lost returns how many packets the kernel dropped instead of queueing them.
func Lost(m lab.Metrics) float64 {
	return m.Sum("nfqueue_queue_dropped") + m.Sum("nfqueue_user_dropped")
}

// Steered returns how many packets the kernel has sent towards the queues.
func Steered(m lab.Metrics) float64 {
	return m.Sum("netpol_steered_packets_total", "purpose", "decide")
}

// Unanswered returns how many packets were steered but neither decided nor lost.
func Unanswered(m lab.Metrics) float64 {
	return Steered(m) - (m.Sum("packet_count") - m.Sum("netpol_remembered_packets_total")) - Lost(m)
}

// AwaitVerdicts waits until all packets of earlier probes have been counted.
func AwaitVerdicts(t *testing.T, agent *lab.Agent) {
	t.Helper()
	if err := Within(t, func() bool { return Unanswered(Metrics(t, agent)) == 0 }); err != nil {
		t.Fatalf("%v packets have no verdict", Unanswered(Metrics(t, agent)))
	}
}

// Enforced makes a change of the cluster and returns when it is in the kernel's table and
// the agent enforces it on all packets. A change of several objects may count as several;
// Enforced returns after the first.
func Enforced(t *testing.T, agent *lab.Agent, change func()) {
	t.Helper()
	before := Metrics(t, agent)
	change()
	for _, name := range []string{"netpol_policy_programming_duration_seconds_count", "netpol_snapshot_latency_seconds_count"} {
		count := func(m lab.Metrics) float64 { return m.Sum(name) }
		if got := Until(t, agent, count(before)+1, count); got == count(before) {
			t.Fatal("the change is not enforced")
		}
	}
}

// Until waits until a number read from the agent is at least want, and returns the last
// value.
func Until(t *testing.T, agent *lab.Agent, want float64, read func(lab.Metrics) float64) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ChangeTimeout)
	defer cancel()
	var got float64
	lab.Poll(ctx, func() (bool, error) {
		got = read(Metrics(t, agent))
		return got >= want, nil
	})
	return got
}

// Counter counts packets at a node: those that arrive, before any hook of the agent, and,
// after all hooks, those that the node forwards or sends and those for the node itself.
type Counter struct{ node *lab.Node }

// NewCounter counts packets that match an nftables expression. A node can have only one
// Counter.
func NewCounter(t *testing.T, node *lab.Node, match string) Counter {
	t.Helper()
	table := fmt.Sprintf(`
table inet test {
	counter arrived { }
	counter left { }
	counter taken { }
	chain prerouting {
		type filter hook prerouting priority -500
		%[1]s counter name arrived
	}
	chain postrouting {
		type filter hook postrouting priority 500
		%[1]s counter name left
	}
	chain input {
		type filter hook input priority 500
		%[1]s counter name taken
	}
}
`, match)
	if _, err := node.Run(t.Context(), table, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return Counter{node}
}

var packetsOf = regexp.MustCompile(`packets (\d+)`)

// Arrived returns how many packets have reached the node.
func (c Counter) Arrived(t *testing.T) int {
	t.Helper()
	return c.packets(t, "arrived")
}

// Left returns how many packets have passed the node's hooks. Some may still be lost later,
// for example by a full backlog of the kernel or a slow reader.
func (c Counter) Left(t *testing.T) int {
	t.Helper()
	return c.packets(t, "left")
}

// Taken returns how many packets for the node itself have passed its hooks.
func (c Counter) Taken(t *testing.T) int {
	t.Helper()
	return c.packets(t, "taken")
}

func (c Counter) packets(t *testing.T, name string) int {
	t.Helper()
	text, err := c.node.Run(t.Context(), "", "nft", "list", "counter", "inet", "test", name)
	if err != nil {
		t.Fatal(err)
	}
	found := packetsOf.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no packets in %q", text)
	}
	return Atoi(t, found[1])
}

// NeedConntrack skips a test that needs more entries in the connection table than this
// machine allows. Where skipping is forbidden, root can raise the limit.
func NeedConntrack(t *testing.T, entries int) {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	limit := Atoi(t, strings.TrimSpace(string(text)))
	switch {
	case limit >= entries:
	case os.Getenv("NETNS_REQUIRED") != "":
		t.Fatalf("nf_conntrack_max is %d, and the test needs %d", limit, entries)
	default:
		t.Skipf("nf_conntrack_max is %d, and the test needs %d", limit, entries)
	}
}

// Atoi parses a decimal number.
func Atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
