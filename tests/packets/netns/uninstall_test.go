package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const (
	// tracks is a table that makes the kernel load connection tracking.
	tracks = `table inet other {
	chain look {
		type filter hook prerouting priority mangle
		ct state new
	}
}
`
	// marksAll is a table that sets the agent's two bits and one of another program.
	marksAll = `table inet other {
	chain look {
		type filter hook prerouting priority mangle
		ct mark set ct mark | 0x11800 counter
	}
}
`
	// countsMarks counts packets of connections with a bit of the agent, and with the bit of
	// the other program.
	countsMarks = `delete table inet other
table inet other {
	counter agent {}
	counter other {}
	chain look {
		type filter hook prerouting priority mangle
		ct mark & 0x1800 != 0 counter name agent
		ct mark & 0x10000 != 0 counter name other
	}
}
`
)

// TestUninstallLeavesNothing runs on a node what the pods of uninstall.yaml run.
func TestUninstallLeavesNothing(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	node := c.Nodes[0]
	run := func(stdin, name string, args ...string) string {
		t.Helper()
		out, err := node.Run(t.Context(), stdin, name, args...)
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return out
	}
	sysctls := func() string {
		t.Helper()
		return run("", "sh", "-c", "grep -rs . /proc/sys/net | grep -v nf_conntrack_count | sort")
	}
	run(tracks, "nft", "-f", "-")
	before := sysctls()
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	talk := converse(t, c.Hosts["y/db"], c.Hosts["x/web"])
	talks := func() {
		t.Helper()
		enough := talk.answered.Load() + 10
		if err := labtest.Within(t, func() bool { return talk.answered.Load() >= enough }); err != nil {
			t.Fatal("the established connection is cut")
		}
	}
	talks()
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(marksAll, "nft", "-f", "-")
	// One of the bits blocks the connection until it is cleared.
	if err := labtest.Within(t, func() bool {
		return !strings.Contains(run("", "nft", "list", "chain", "inet", "other", "look"), "packets 0 ")
	}); err != nil {
		t.Fatal("no packet is marked")
	}
	saved := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(saved, []byte("saved"), 0o600); err != nil {
		t.Fatal(err)
	}

	run("flush chain inet other look", "nft", "-f", "-")
	run("", labtest.AgentBinary, "cleanup", "--snapshot-cache="+saved)
	run(countsMarks, "nft", "-f", "-")
	talks()
	counters := run("", "nft", "list", "counters")
	agentCounters, otherCounter, _ := strings.Cut(counters, "counter other")
	if !strings.Contains(agentCounters, "packets 0 ") || strings.Contains(otherCounter, "packets 0 ") {
		t.Errorf("connection marks have bits of the agent, or lack the bit of the other program:\n%s", counters)
	}
	run("", "nft", "delete", "table", "inet", "other")
	if rules := run("", "nft", "list", "ruleset"); strings.TrimSpace(rules) != "" {
		t.Errorf("rules are left:\n%s", rules)
	}
	if _, err := os.Stat(saved); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the saved state is left: %v", err)
	}
	if after := sysctls(); after != before {
		t.Errorf("sysctls before\n%s\nand after\n%s", before, after)
	}
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))
}
