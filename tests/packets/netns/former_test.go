package netns

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// formerAgent builds an agent that names its tables as versions up to 0.2.0 did.
func formerAgent(t *testing.T) string {
	t.Helper()
	return overlaidAgent(t, map[string][2]string{
		"pkg/kernel/steer/ruleset.go":             {`TableName = "` + steer.TableName, `TableName = "` + steer.FormerName},
		"pkg/kernel/bridgefilter/bridgefilter.go": {`TableName = "` + steer.TableName, `TableName = "` + steer.FormerName},
		"pkg/kernel/steer/former.go":              {`FormerName = "` + steer.FormerName, `FormerName = "none`},
	})
}

// overlaidAgent builds an agent with other text in files.
func overlaidAgent(t *testing.T, files map[string][2]string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("another agent is built from source: ", err)
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	folder, replace := t.TempDir(), map[string]string{}
	for file, texts := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || !strings.Contains(string(text), texts[0]) {
			t.Fatalf("%s has no %q (%v)", file, texts[0], err)
		}
		copied := filepath.Join(folder, strings.ReplaceAll(file, "/", "_"))
		writeFile(t, copied, strings.Replace(string(text), texts[0], texts[1], 1))
		replace[filepath.Join(root, file)] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(folder, "overlay.json"), string(overlay))
	binary := filepath.Join(folder, "agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", root, "-overlay="+folder+"/overlay.json", "-ldflags=-w", "-o", binary, "./cmd/kube-network-policies")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return binary
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// waitTable waits until a table of the first node has rules, or none, or until it is gone.
func (c *cluster) waitTable(t *testing.T, name string, rules, exists bool) {
	t.Helper()
	var table string
	if err := labtest.Within(t, func() bool {
		var err error
		table, err = c.Nodes[0].Run(t.Context(), "", "nft", "list", "table", "inet", name)
		return (err == nil) == exists && strings.Contains(table, "goto") == rules
	}); err != nil {
		t.Fatalf("%v: table %s:\n%s", err, name, table)
	}
}

// TestUpgradeFromTheFormerTable: the agent of an earlier version, whose table has the former name, runs
// beside the new one for a while, as two DaemonSets do. Going back and upgrading again, no packet is
// lost and none is passed that is denied.
func TestUpgradeFromTheFormerTable(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	c.Apply(t, "policies", onlyDB)
	old, next := &surge{c: c, binary: formerAgent(t)}, &surge{c: c, turn: 1}
	start := func(s *surge) *lab.Agent {
		t.Helper()
		agent := s.start(t)
		labtest.WaitReady(t, agent)
		return agent
	}
	stop := func(agent *lab.Agent) {
		t.Helper()
		if err := agent.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	former := start(old)
	expected := []labtest.Expectation{labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80")}
	c.Expect(t, expected...)
	talk, l := converse(t, c.Hosts["y/db"], c.Hosts["x/web"]), startLoad(t, c, 50)

	agent := start(next)
	c.waitTable(t, steer.FormerName, false, true)
	c.Expect(t, expected...)
	stop(agent)
	c.waitTable(t, steer.TableName, false, false)
	c.waitTable(t, steer.FormerName, true, true)
	c.Expect(t, expected...)

	start(next)
	c.waitTable(t, steer.FormerName, false, true)
	stop(former)
	c.waitTable(t, steer.FormerName, false, false)
	c.Expect(t, expected...)
	l.stop()
	if l.failed.Load() > 0 || l.denied.Received() > 0 || l.sent.Load() == 0 {
		t.Errorf("%d of %d connections failed, %d of %d denied packets passed", l.failed.Load(), l.opened.Load(), l.denied.Received(), l.sent.Load())
	}
	talk.goesOn(t)
}

// TestFormerTableIsTakenOver: the agents of the former table and of the new one crash in between.
func TestFormerTableIsTakenOver(t *testing.T) {
	binary := formerAgent(t)
	for name, crash := range map[string]func(t *testing.T, c *cluster, former *lab.Agent, next *surge){
		"the former agent": func(t *testing.T, _ *cluster, former *lab.Agent, _ *surge) { former.Kill() },
		"the new agent, and then both": func(t *testing.T, c *cluster, former *lab.Agent, next *surge) {
			agent := next.start(t)
			labtest.WaitReady(t, agent)
			c.waitTable(t, steer.FormerName, false, true)
			agent.Kill()
			c.waitTable(t, steer.FormerName, true, true) // the former agent decides again
			former.Kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
			c.Apply(t, "policies", onlyDB)
			old, next := &surge{c: c, binary: binary}, &surge{c: c, turn: 1}
			former := old.start(t)
			labtest.WaitReady(t, former)
			c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
			talk, l := converse(t, c.Hosts["y/db"], c.Hosts["x/web"]), startLoad(t, c, 20)
			crash(t, c, former, next)
			labtest.WaitReady(t, next.start(t))
			c.waitTable(t, steer.FormerName, false, false)
			c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
			l.stop()
			if l.denied.Received() > 0 || l.sent.Load() == 0 {
				t.Errorf("%d of %d denied packets passed", l.denied.Received(), l.sent.Load())
			}
			talk.goesOn(t)
		})
	}
}

// goesOn fails the test if the conversation is cut.
func (c *conversation) goesOn(t *testing.T) {
	t.Helper()
	enough := c.answered.Load() + 10
	if err := labtest.Within(t, func() bool { return c.answered.Load() >= enough }); err != nil {
		t.Error("the established connection is cut")
	}
}
