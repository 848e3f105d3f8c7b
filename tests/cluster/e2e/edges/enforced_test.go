package edges

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// waitEnforced is the command wait of kubectl netpol, where the API server can be reached.
func waitEnforced(kubeconfig string, args ...string) *exec.Cmd {
	return exec.Command("../cluster/run.sh", append([]string{"cp", netpol, "wait", "--kubeconfig=" + kubeconfig, "--for=enforced", "--timeout=" + patience.String()}, args...)...)
}

// A trier is a prober in a pod that makes attempts as soon as it gets an order.
type trier struct {
	orders  *json.Encoder
	answers *json.Decoder
	id      int
}

func newTrier(t *testing.T, namespace, pod string) *trier {
	t.Helper()
	command := exec.Command("../cluster/run.sh", "kubectl", "-n", namespace, "exec", "-i", pod, "--", "prober", "try", "-at-once=100")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	orders, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Kill(-command.Process.Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		_ = command.Wait() // it was killed
	})
	return &trier{orders: json.NewEncoder(orders), answers: json.NewDecoder(answers)}
}

// try makes an attempt for each target at once, and returns how many succeeded and one of the errors.
func (p *trier) try(t *testing.T, targets []string) (succeeded int, failure error) {
	t.Helper()
	for _, target := range targets {
		p.id++
		if err := p.orders.Encode(map[string]any{"id": p.id, "target": target, "milliseconds": 3000}); err != nil {
			t.Fatal(err)
		}
	}
	for range targets {
		var answer struct {
			ID             int
			Failure, Error string
		}
		if err := p.answers.Decode(&answer); err != nil {
			t.Fatalf("answers of the prober: %v", err)
		}
		if answer.Failure == "" {
			succeeded++
		} else {
			failure = fmt.Errorf("%s: %s", answer.Failure, answer.Error)
		}
	}
	return succeeded, failure
}

// As soon as kubectl netpol wait returns, packets are decided by the policy that was applied before it
// and by no older one, in both directions of a change. A datagram is sent once, so that one which is
// decided by an older policy is not repaired by another.
func TestEnforcedDecides(t *testing.T) {
	needAgent(t)
	const changes, perChange = 20, 50
	namespace := newNamespace(t)
	start(t, namespace,
		pod{"server", "n1", "{app: server}", container(prober, "serve")},
		pod{"client", "n2", "{app: client}", container(prober, "serve")})
	manifest := filepath.Join(t.TempDir(), "policy.yaml")
	// enforce applies a policy that admits an app to the server, and waits for it.
	enforce := func(app string) {
		t.Helper()
		err := os.WriteFile(manifest, fmt.Appendf(nil, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: server, namespace: %s}\n"+
			"spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}]}]}\n", namespace, app), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, "apply", "-f", manifest)
		if output, err := waitEnforced(asAdministrator(), "-f", manifest).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	var targets []string
	for i := range perChange {
		addresses := podAddresses(t, namespace, "server")
		targets = append(targets, []string{"udp", "tcp"}[i/len(addresses)%2]+"://"+hostPort(addresses[i%len(addresses)], 8080))
	}
	client := newTrier(t, namespace, "client")
	enforce("client")
	eventually(t, "a client that is known to the server's node", func() error {
		succeeded, failure := client.try(t, targets)
		if succeeded < len(targets) {
			return failure
		}
		return nil
	})
	old := 0
	for i := range changes {
		if i%2 == 0 {
			enforce("nothing")
			succeeded, _ := client.try(t, targets)
			old += succeeded
			continue
		}
		enforce("client")
		succeeded, failure := client.try(t, targets)
		if succeeded < len(targets) {
			old += len(targets) - succeeded
			t.Logf("change %d: %d attempts failed: %v", i, len(targets)-succeeded, failure)
		}
	}
	t.Logf("%d of %d attempts were decided by an older policy", old, changes*len(targets))
	if old > 0 {
		t.Error("a policy that is said to be in force does not decide")
	}
}
