package netns

import (
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// waitNotReady waits until an agent reports that it is not ready, with all of these words.
func waitNotReady(t *testing.T, agent *lab.Agent, words ...string) {
	t.Helper()
	var status int
	var body string
	if err := labtest.Within(t, func() bool {
		status, body, _ = agent.Get(t.Context(), "/readyz")
		for _, word := range words {
			if !strings.Contains(body, word) {
				return false
			}
		}
		return status != http.StatusOK
	}); err != nil {
		t.Fatalf("%d %s, want not ready with %q", status, body, words)
	}
}

// TestANodeNameThatNoNodeHas: the agent is not ready, says which Nodes exist, and opens
// nothing. It works when the Node is created, and continues when the Node is deleted.
func TestANodeNameThatNoNodeHas(t *testing.T) {
	c, cache := newBooted(t)
	const name = "node-1.example.com"
	api := c.api(t) // with a Node node-1
	for _, pod := range c.Pods {
		if pod.Object.Spec.NodeName == "node-1" {
			pod.Object.Spec.NodeName = name
			put(t, api, pod.Object)
		}
	}
	serveAPI(t, c.Nodes[0], api)
	agent := c.startWithAPI(t, "--pod-address-source="+string(cache), "--hostname-override="+name)
	problems := func() float64 {
		return labtest.Metrics(t, agent).Sum("netpol_node_problems", "cause", "own_node")
	}
	waitNotReady(t, agent, "no snapshot", `no Node "`+name+`"`, `similar names: "node-1"`)
	labtest.WaitLog(t, agent, `no Node \"`+name)
	if problems() != 1 {
		t.Error("the metric has no problem of the own Node")
	}
	c.waitSteered(t, "x/web")
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"))

	own := c.Nodes[0].Object()
	own.Name = name
	put(t, api, own)
	labtest.WaitReady(t, agent)
	expected := []labtest.Expectation{labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("x/web", "y/web", "tcp/80")}
	c.Expect(t, expected...)
	if err := labtest.Within(t, func() bool { return problems() == 0 }); err != nil {
		t.Error("the problem does not end")
	}
	if n := strings.Count(agent.Log(), "The pods of the agent's node name"); n != 1 {
		t.Errorf("the problem is logged %d times", n)
	}

	if _, err := api.Delete(own); err != nil {
		t.Fatal(err)
	}
	waitNotReady(t, agent, `Node "`+name+`" is no longer in the cluster`)
	c.Expect(t, expected...)
	if err := labtest.Within(t, func() bool { return problems() == 1 }); err != nil {
		t.Error("no problem although the Node is gone")
	}
}
