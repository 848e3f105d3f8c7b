package neighbours

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// neighbour is what another program does on a node.
type neighbour struct {
	// name, holds and reported are a row of the table in docs/install/README.md.
	name, holds, reported string

	needs     string // a program
	flowtable bool   // needs a kernel with flowtables, as that of make test-vm
	long      bool   // only in the long form

	set   string // a script for what it has in the kernel
	again string // a script for what it does again, such as a reload; empty for the same
	make  func(t *testing.T, n node)
	list  func(t *testing.T, n node) string // nil for listNeighbours

	more   []labtest.Expectation // what else is to be expected
	except []labtest.Expectation // instead of what policies allow, where it differs
	cause  string                // of netpol_node_problems, when the agent starts

	untracked bool // packets of isolated pods are not tracked, and counted

	silent   bool // a connection from z/out to x/web does not work
	bypasses bool // its packets do not pass the agent, which only reports it
}

// expect probes what policies deny and allow beside the neighbour.
func (n node) expect(t *testing.T, other neighbour) {
	t.Helper()
	n.Expect(t, slices.Concat(denied, other.allowed(), other.more)...)
}

// allowed is what passes beside the neighbour.
func (other neighbour) allowed() []labtest.Expectation {
	if other.except != nil {
		return other.except
	}
	return allowed
}

func (n node) set(t *testing.T, other neighbour) {
	t.Helper()
	if other.make != nil {
		other.make(t, n)
	}
	n.run(t, other.set)
}

// TestNeighbours has each neighbour come to a node, act again, and be there first.
func TestNeighbours(t *testing.T) {
	for _, other := range neighbours {
		t.Run(strings.ReplaceAll(other.name, "`", ""), func(t *testing.T) {
			if other.long {
				labtest.SkipShort(t)
			}
			labtest.Need(t)
			if _, err := exec.LookPath(other.needs); other.needs != "" && err != nil {
				t.Fatal(err)
			}
			t.Parallel()
			n := newNode(t)
			if other.flowtable {
				n.needFlowtables(t)
			}
			if other.bypasses {
				n.isReported(t, other)
				return
			}
			n.comes(t, other)
			n.isFirst(t, other)
		})
	}
}

// needFlowtables skips a test on a kernel without flowtables.
func (n node) needFlowtables(t *testing.T) {
	t.Helper()
	const try = "table ip try { flowtable one { hook ingress priority 0; devices = { lo }; }; }"
	_, err := n.Nodes[0].Run(t.Context(), try, "nft", "-f", "-")
	if err == nil {
		n.run(t, "nft delete table ip try")
		return
	}
	if !strings.Contains(err.Error(), "No such file or directory") {
		t.Fatal(err)
	}
	t.Skip("the kernel has no flowtables")
}

// comes has the neighbour come while the agent runs.
func (n node) comes(t *testing.T, other neighbour) {
	t.Helper()
	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.Expect(t, slices.Concat(denied, allowed)...)
	n.set(t, other)
	n.run(t, other.again)
	labtest.WaitReady(t, agent)
	n.expect(t, other)
	before := n.list(t, other)
	n.changes(t, other)
	n.unchanged(t, other, before, "before a change of policies")
	n.remove(t, agent)
	n.unchanged(t, other, before, "before the agent was removed")
}

// isFirst has the agent come to the neighbour.
func (n node) isFirst(t *testing.T, other neighbour) {
	t.Helper()
	before := n.list(t, other)
	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.expect(t, other)
	n.problem(t, agent, other.cause)
	if packets := labtest.Metrics(t, agent).Sum("netpol_untracked_packets_total"); packets > 0 != other.untracked {
		t.Errorf("%v packets that are not tracked are counted", packets)
	}
	n.changes(t, other)
	n.unchanged(t, other, before, "before the agent came")
	n.remove(t, agent)
	n.unchanged(t, other, before, "before the agent came and was removed")
}

// isReported has the agent come to the neighbour, and leave.
func (n node) isReported(t *testing.T, other neighbour) {
	t.Helper()
	n.set(t, other)
	before := n.list(t, other)
	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.problem(t, agent, other.cause)
	n.remove(t, agent)
	n.unchanged(t, other, before, "before the agent came and was removed")
}

// changes denies an established connection, and allows it again.
func (n node) changes(t *testing.T, other neighbour) {
	t.Helper()
	if other.silent {
		return
	}
	talk := n.talk(t, "z/out", "x/web")
	n.run(t, other.again)
	if err := labtest.Within(t, talk.answered); err != nil {
		t.Error("an established connection is cut though it is allowed")
	}
	n.Replace(t, "x", closed)
	talk.ends(t)
	n.Expect(t, labtest.No("y/db", "x/web", "udp/80"), labtest.No("z/out", "x/web", "tcp/80"))
	n.Replace(t, "x", isolated)
	n.expect(t, other)
}

// problem compares the causes in netpol_node_problems with the one of the neighbour, if it has
// one.
func (n node) problem(t *testing.T, agent *lab.Agent, cause string) {
	t.Helper()
	m := labtest.Metrics(t, agent)
	known, found := m.Sum("netpol_node_problems", "cause", cause), m.Sum("netpol_node_problems")
	if known != found || known == 0 && cause != "" {
		t.Errorf("%v problems of the node are found, %v of them of the cause %q", found, known, cause)
	}
}
