package neighbours

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// neighbour is another program on a node.
type neighbour struct {
	// name, holds and reported are a row of the table in docs/install/README.md.
	name, holds, reported string

	needs  string // a program
	kernel string // a script that fails on kernels without what it needs, unlike that of make test-vm
	long   bool   // only in the long form

	set    string // a script that creates its state in the kernel
	repeat string // a script that acts again, such as a reload; empty repeats set
	make   func(t *testing.T, n node)
	list   func(t *testing.T, n node) string // nil for listNeighbours

	more   []labtest.Expectation // additional expectations
	except []labtest.Expectation // replace what policies allow, where it differs
	cause  string                // of netpol_node_problems when the agent starts

	untracked bool // packets of isolated pods are untracked, and counted
	copied    bool // it writes the agent's bits into new connections, which are counted

	silent   bool // a connection from z/out to x/web does not work
	goesOn   bool // one that is denied may go on
	bypasses bool // its packets bypass the agent, which only reports it
}

// expect probes what policies deny and allow beside the neighbour.
func (n node) expect(t *testing.T, nb neighbour) {
	t.Helper()
	n.Expect(t, slices.Concat(denied, nb.allowed(), nb.more)...)
}

// allowed returns the connections that pass beside the neighbour.
func (nb neighbour) allowed() []labtest.Expectation {
	if nb.except != nil {
		return nb.except
	}
	return allowed
}

func (n node) set(t *testing.T, nb neighbour) {
	t.Helper()
	if nb.make != nil {
		nb.make(t, n)
	}
	n.run(t, nb.set)
}

// TestNeighbours lets each neighbour start on a node, act again, and start before the
// agent.
func TestNeighbours(t *testing.T) {
	for _, nb := range neighbours {
		t.Run(strings.ReplaceAll(nb.name, "`", ""), func(t *testing.T) {
			if nb.long {
				labtest.SkipShort(t)
			}
			labtest.Need(t)
			if _, err := exec.LookPath(nb.needs); nb.needs != "" && err != nil {
				t.Fatal(err)
			}
			t.Parallel()
			n := newNode(t)
			n.needKernel(t, nb)
			if nb.bypasses {
				n.isReported(t, nb)
				return
			}
			n.comes(t, nb)
			n.isFirst(t, nb)
		})
	}
}

// needKernel skips a test on a kernel that lacks what the neighbour needs, unless KERNEL_REQUIRED is set.
func (n node) needKernel(t *testing.T, nb neighbour) {
	t.Helper()
	_, err := n.Nodes[0].Run(t.Context(), nb.kernel, "bash", "-e")
	switch {
	case err == nil:
	case os.Getenv("KERNEL_REQUIRED") == "" && lacking.MatchString(err.Error()):
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// lacking matches what nft, tc and ip say about what the kernel does not have.
var lacking = regexp.MustCompile("No such file or directory|Failed to load TC action module|TC classifier not found|Protocol not supported|algorithm not found")

// comes starts the neighbour while the agent runs.
func (n node) comes(t *testing.T, nb neighbour) {
	t.Helper()
	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.Expect(t, slices.Concat(denied, allowed)...)
	n.set(t, nb)
	n.run(t, nb.repeat)
	labtest.WaitReady(t, agent)
	n.expect(t, nb)
	before := n.list(t, nb)
	n.changes(t, nb)
	n.unchanged(t, nb, before, "before a change of policies")
	n.remove(t, agent)
	n.unchanged(t, nb, before, "before the agent was removed")
}

// isFirst starts the agent after the neighbour.
func (n node) isFirst(t *testing.T, nb neighbour) {
	t.Helper()
	before := n.list(t, nb)
	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.expect(t, nb)
	n.problem(t, agent, nb.cause)
	if packets := labtest.Metrics(t, agent).Sum("netpol_untracked_packets_total"); packets > 0 != nb.untracked {
		t.Errorf("%v packets that are not tracked are counted", packets)
	}
	if marks := labtest.Metrics(t, agent).Sum("netpol_copied_marks_total"); marks > 0 != nb.copied {
		t.Errorf("%v copied marks are counted", marks)
	}
	n.changes(t, nb)
	n.unchanged(t, nb, before, "before the agent came")
	n.remove(t, agent)
	n.unchanged(t, nb, before, "before the agent came and was removed")
}

// isReported starts the agent after the neighbour, and removes the agent.
func (n node) isReported(t *testing.T, nb neighbour) {
	t.Helper()
	n.set(t, nb)
	before := n.list(t, nb)
	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.problem(t, agent, nb.cause)
	n.remove(t, agent)
	n.unchanged(t, nb, before, "before the agent came and was removed")
}

// changes denies an established connection and allows it again.
func (n node) changes(t *testing.T, nb neighbour) {
	t.Helper()
	if nb.silent || nb.goesOn {
		return
	}
	talk := n.talk(t, "z/out", "x/web")
	n.run(t, nb.repeat)
	if err := labtest.Within(t, talk.answered); err != nil {
		t.Error("an established connection ends although it is allowed")
	}
	n.Replace(t, "x", closed)
	talk.ends(t)
	n.Expect(t, labtest.No("y/db", "x/web", "udp/80"), labtest.No("z/out", "x/web", "tcp/80"))
	n.Replace(t, "x", isolated)
	n.expect(t, nb)
}

// problem compares the causes in netpol_node_problems with the neighbour's cause, if it has
// one.
func (n node) problem(t *testing.T, agent *lab.Agent, cause string) {
	t.Helper()
	m := labtest.Metrics(t, agent)
	known, found := m.Sum("netpol_node_problems", "cause", cause), m.Sum("netpol_node_problems")
	if known != found || known == 0 && cause != "" {
		t.Errorf("%v problems of the node are found, %v of them of the cause %q", found, known, cause)
	}
}
