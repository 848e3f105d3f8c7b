package edges

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A client that has looked up the name of a policy keeps what it may reach while all agents are
// replaced: it connects again and again, without another lookup. A client that has not looked it up
// is denied throughout.
func TestNamesSurviveARollout(t *testing.T) {
	needAgent(t)
	if _, err := attempt("kubectl", "get", "customresourcedefinition", "clusternetworkpolicies.policy.networking.k8s.io"); err != nil {
		t.Skip("the cluster has no administrators' kinds: make cluster-up AGENT=install-anp.yaml")
	}
	namespace := newNamespace(t)
	start(t, namespace,
		pod{"server", "n2", "{app: server}", container(agnhost, "netexec", "--http-port=8080")},
		pod{"client", "n1", "{app: client}", container(agnhost, "pause")},
		pod{"other", "n1", "{app: client}", container(agnhost, "pause")})
	name := "server." + namespace + ".svc.cluster.local"
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: server, namespace: %[1]s}
spec: {clusterIP: None, selector: {app: server}, ports: [{port: 8080}]}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: %[1]s}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}, podSelector: {matchLabels: {app: client}}}}
  egress:
  - {action: Accept, to: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}]}
  - {action: Accept, to: [{domainNames: [%[2]s]}]}
  - {action: Deny, to: [{namespaces: {}}, {networks: [0.0.0.0/0, "::/0"]}]}
`, namespace, name))
	defer kubectl(t, "delete", "clusternetworkpolicy", namespace)
	address := podAddresses(t, namespace, "server")[0]
	inPod := func(pod, script string) (string, error) {
		return attempt("kubectl", "-n", namespace, "exec", pod, "--", "bash", "-c", script)
	}
	connect := fmt.Sprintf("/agnhost connect --timeout=2s --protocol=tcp '%s'", hostPort(address, 8080))
	eventually(t, "the policy", func() error {
		if output, err := inPod("other", connect); err == nil {
			return errors.New("the other pod connects " + output)
		}
		return nil
	})
	eventually(t, "the name", func() error {
		_, err := inPod("client", fmt.Sprintf("dig +search +short A %[1]s; dig +short AAAA %[1]s; %[2]s", name, connect))
		return err
	})

	const untilStopped = `rm -f /tmp/stop; ok=0; failed=0; while [ ! -e /tmp/stop ]; do if %s >/dev/null 2>&1; then ok=$((ok+1)); else failed=$((failed+1)); fi; sleep 0.02; done; echo $ok $failed`
	counted := map[string]chan string{"client": make(chan string, 1), "other": make(chan string, 1)}
	for pod, counts := range counted {
		go func() {
			output, err := inPod(pod, fmt.Sprintf(untilStopped, connect))
			if err != nil {
				output = err.Error()
			}
			counts <- output
		}()
	}
	for range 3 {
		kubectl(t, "-n", "kube-system", "rollout", "restart", agents)
		agentsReady(t)
	}

	for pod, counts := range counted {
		if _, err := inPod(pod, "touch /tmp/stop"); err != nil {
			t.Fatal(err)
		}
		var connected, failed int
		output := strings.TrimSpace(<-counts)
		if n, _ := fmt.Sscan(output, &connected, &failed); n != 2 {
			t.Fatalf("%s: %s", pod, output)
		}
		t.Logf("%s: %d connections, %d failed attempts during three rollouts", pod, connected, failed)
		if pod == "client" && (failed > 0 || connected == 0) {
			t.Error("the client failed to connect to an address whose name it had looked up")
		}
		if pod == "other" && (connected > 0 || failed == 0) {
			t.Error("the other pod connected")
		}
	}
}
