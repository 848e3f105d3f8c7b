package edges

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/google/go-cmp/cmp"
)

// The chart, on a cluster whose agent is removed for it: installed where another process
// has queue numbers, 100 as kindnet does and the first one of the agent, it enforces;
// upgraded and rolled back it lets nothing through that is denied, and uninstalled it leaves
// nothing but the Lease.
func TestChart(t *testing.T) {
	needAgent(t)
	helm := os.Getenv("EDGES_HELM")
	before := map[string]string{"n1": tracesBefore(t, "n1"), "n2": tracesBefore(t, "n2")}
	removeAgent(t)
	defer installAgent(t)
	for _, number := range []uint16{100, 7100} {
		takeQueue(t, "n1", number)
	}

	release := func(command string, args ...string) {
		t.Helper()
		run(t, "cp", append([]string{helm, command, "--kubeconfig=" + state + "/admin.conf", "--namespace=kube-system"}, args...)...)
	}
	const chart, name = "../../../../charts/kube-network-policies", "netpol-agent"
	release("install", name, chart)
	defer attempt("cp", helm, "uninstall", name, "--kubeconfig="+state+"/admin.conf", "--namespace=kube-system", "--ignore-not-found")
	agentsReady(t)

	// Waits until what is denied is denied.
	f := newField(t)
	check(t, f.probe(t, "chart-upgrade", func() {
		release("upgrade", name, chart, "--set-string=agent.podAnnotations.edges=upgraded")
		agentsReady(t)
	}))
	check(t, f.probe(t, "chart-rollback", func() {
		release("rollback", name)
		agentsReady(t)
	}))

	release("uninstall", name)
	kubectl(t, "-n", "kube-system", "delete", "lease", "netpol-status")
	agentsEnded(t)
	for node, traces := range before {
		if diff := cmp.Diff(strings.Split(traces, "\n"), strings.Split(tracesNow(t, node), "\n")); diff != "" {
			t.Errorf("%s differs from what it was before:\n%s", node, diff)
		}
	}
	kinds := "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,roles,rolebindings,serviceaccounts,daemonsets,deployments,networkpolicies,leases,configmaps,secrets"
	for line := range strings.Lines(kubectl(t, "get", kinds, "-A", "-o", "name")) {
		if strings.Contains(line, name) || strings.Contains(line, "netpol-status") {
			t.Errorf("%s is left", strings.TrimSpace(line))
		}
	}
}

// takeQueue keeps a queue number of a node until the test ends.
func takeQueue(t *testing.T, node string, number uint16) {
	t.Helper()
	namespace, err := os.Open("/run/netns/" + prefix + "-" + node)
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	queue, err := nfqueue.Open(&nfqueue.Config{NfQueue: number, MaxPacketLen: 64, MaxQueueLen: 16, Copymode: nfqueue.NfQnlCopyPacket, NetNS: int(namespace.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	none := func(nfqueue.Attribute) int { return 0 }
	if err := queue.RegisterWithErrorFunc(ctx, none, func(error) int { return 0 }); err != nil {
		end()
		t.Fatalf("queue number %d of %s: %v", number, node, err)
	}
	t.Cleanup(func() {
		end()
		if err := queue.Close(); err != nil {
			t.Error(err)
		}
	})
}
