package edges

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const (
	agents     = "daemonset/netpol-agent"
	agentLabel = "app.kubernetes.io/name=netpol-agent"
)

func needAgent(t *testing.T) {
	t.Helper()
	if !withAgent {
		t.Skip("the cluster has no agent")
	}
}

func agentsReady(t *testing.T) {
	t.Helper()
	kubectl(t, "-n", "kube-system", "rollout", "status", agents, "--timeout="+patience.String())
}

// The processes of an agent's container: the first one, and the one that it starts.
const (
	firstProcess = "-o"
	agentProper  = "-n"
)

// agentProcess returns the pid of a node's agent, in the node's namespace of pids.
func agentProcess(node, which string) (string, error) {
	output, err := attempt(node, "pgrep", which, "-f", "^(/usr/bin/)?kube-network-policies --hostname-override")
	if err != nil || strings.TrimSpace(output) == "" {
		return "", fmt.Errorf("no agent on %s: %w", node, err)
	}
	return strings.TrimSpace(output), nil
}

// killAgent ends a process of a node's agent without a chance to clean up, and returns
// when another one runs. Without the first process the kubelet starts the container
// again.
func killAgent(t *testing.T, node, which string) {
	t.Helper()
	old, err := agentProcess(node, which)
	if err != nil {
		t.Fatal(err)
	}
	run(t, node, "kill", "-KILL", old)
	eventually(t, "another agent on "+node, func() error {
		now, err := agentProcess(node, which)
		if err == nil && now == old {
			err = fmt.Errorf("pid %s is still there", old)
		}
		return err
	})
}

func agentPod(t *testing.T, node string) string {
	t.Helper()
	return strings.TrimSpace(kubectl(t, "-n", "kube-system", "get", "pod", "-l", agentLabel,
		"--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name}"))
}

// outage is how long the API server is away.
func outage(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(os.Getenv("EDGES_OUTAGE"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// withoutAPI stops the API server, calls do, and starts it again. It logs how long after it
// serves the agents have read what changed meanwhile, and the goal.
func withoutAPI(t *testing.T, do func()) {
	t.Helper()
	run(t, "api", "stop")
	defer func() {
		started := make(chan error, 1)
		go func() {
			_, err := attempt("api", "start")
			started <- err
		}()
		if withAgent {
			logCurrent(t)
		}
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}()
	do()
}

// logCurrent waits until the API server serves, and until all agents are current.
func logCurrent(t *testing.T) {
	t.Helper()
	eventually(t, "the API server", func() error {
		_, err := attempt("kubectl", "get", "--raw", "/readyz")
		return err
	})
	serves := time.Now()
	for _, node := range []string{"n1", "n2"} {
		eventually(t, "the agent of "+node, func() error {
			metrics, err := attempt(node, "curl", "-s", "-m", "5", "http://127.0.0.1:9080/metrics")
			if err == nil && !strings.Contains(metrics, "\nnetpol_snapshot_age_seconds 0\n") {
				err = errors.New("it is not current")
			}
			return err
		})
	}
	after := time.Since(serves)
	t.Logf("goal %s: agents were current %.1f s after the API server served, at most 5", heldOrMissed(after <= 5*time.Second), after.Seconds())
}

// Connections of pods while agents restart, nodes are drained and the API server is
// away. Nothing denied may get through. How long allowed connections wait or fail is
// logged and kept; docs/testing/results.md has the figures.
func TestDisruptions(t *testing.T) {
	f := newField(t)
	for _, test := range []struct {
		name    string
		agent   bool // whether it is about the agent
		disrupt func(t *testing.T)
	}{
		{"quiet", false, func(*testing.T) { time.Sleep(20 * time.Second) }},
		{"rollout", true, func(t *testing.T) {
			kubectl(t, "-n", "kube-system", "rollout", "restart", agents)
			agentsReady(t)
		}},
		{"pod-deleted", true, func(t *testing.T) {
			kubectl(t, "-n", "kube-system", "delete", "pod", agentPod(t, "n1"))
			agentsReady(t)
		}},
		{"crash", true, func(t *testing.T) {
			killAgent(t, "n1", agentProper)
			agentsReady(t)
			killAgent(t, "n2", agentProper)
			agentsReady(t)
		}},
		{"kill", true, func(t *testing.T) {
			killAgent(t, "n1", firstProcess)
			agentsReady(t)
			killAgent(t, "n2", firstProcess)
			agentsReady(t)
		}},
		{"drain", false, func(t *testing.T) {
			defer kubectl(t, "uncordon", "n2")
			kubectl(t, "drain", "n2", "--ignore-daemonsets", "--delete-emptydir-data", "--force",
				"--pod-selector=edges!=keep", "--timeout="+patience.String())
		}},
		{"api-away", false, func(t *testing.T) {
			withoutAPI(t, func() { time.Sleep(outage(t)) })
		}},
		{"api-away-kill", true, func(t *testing.T) {
			withoutAPI(t, func() {
				killAgent(t, "n1", firstProcess)
				time.Sleep(outage(t))
			})
			agentsReady(t)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.agent {
				needAgent(t)
			}
			check(t, f.probe(t, test.name, func() { test.disrupt(t) }))
		})
	}
}
