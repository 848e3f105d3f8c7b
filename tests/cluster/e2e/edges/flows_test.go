package edges

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// netpol is the kubectl-netpol of this checkout.
var netpol = os.Getenv("EDGES_NETPOL")

// asAdministrator is the kubeconfig of the cluster's administrator.
func asAdministrator() string { return filepath.Join(state, "admin.conf") }

// netpolCommand is the command flows of kubectl netpol, where the API server can be reached.
func netpolCommand(kubeconfig string, args ...string) *exec.Cmd {
	return exec.Command("../cluster/run.sh", append([]string{"cp", netpol, "flows", "--kubeconfig=" + kubeconfig}, args...)...)
}

// flows runs that command. Its exit code is 1 if some agents do not answer.
func flows(kubeconfig string, args ...string) (stdout, stderr string, code int) {
	command := netpolCommand(kubeconfig, args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		code = -1
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		}
	}
	return out.String(), errs.String(), code
}

// hasLine returns an error unless a line of the text has all parts.
func hasLine(text string, parts ...string) error {
	for line := range strings.Lines(text) {
		missing := false
		for _, part := range parts {
			missing = missing || !strings.Contains(line, part)
		}
		if !missing {
			return nil
		}
	}
	return fmt.Errorf("no line has all of %q:\n%s", parts, text)
}

// A pair has a server on n1, which admits the client and not the other pod, both on n2.
type pair struct {
	namespace string
	server    []string // its addresses
}

func newPair(t *testing.T) pair {
	t.Helper()
	p := pair{namespace: newNamespace(t)}
	start(t, p.namespace,
		pod{"server", "n1", "{app: server}", container(agnhost, "netexec", "--http-port=8080")},
		pod{"client", "n2", "{app: client}", container(agnhost, "pause")},
		pod{"other", "n2", "{app: other}", container(agnhost, "pause")})
	p.server = podAddresses(t, p.namespace, "server")
	return p
}

// connects reports whether a pod reaches all addresses of the server, or none.
func (p pair) connects(from string, want bool) error {
	for _, address := range p.server {
		_, err := attempt("kubectl", "-n", p.namespace, "exec", from, "--", "curl", "-gsS", "-o", "/dev/null", "-m", "3", "http://"+hostPort(address, 8080)+"/hostname")
		switch {
		case err != nil && want:
			return err
		case err == nil && !want:
			return fmt.Errorf("%s connects to %s", from, address)
		}
	}
	return nil
}

// kubeconfigOf returns the kubeconfig of a service account.
func kubeconfigOf(t *testing.T, namespace, name string) string {
	t.Helper()
	cluster := kubectl(t, "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster}")
	token := strings.TrimSpace(kubectl(t, "-n", namespace, "create", "token", name))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: %s}]
users: [{name: it, user: {token: %s}}]
`, cluster, token), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What the agents of both nodes have decided is read through the API server, with the rights
// that the documentation names and no others. An agent that does not answer is named.
func TestFlows(t *testing.T) {
	needAgent(t)
	p := newPair(t)
	policy(t, p.namespace, "server", `{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}`)
	policy(t, p.namespace, "client", `{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}`)
	account := p.namespace + "-reader"
	kubectl(t, "-n", p.namespace, "create", "serviceaccount", account)
	kubectl(t, "-n", "kube-system", "create", "role", account, "--verb=list", "--resource=pods")
	t.Cleanup(func() { kubectl(t, "-n", "kube-system", "delete", "role,rolebinding", account) })
	kubectl(t, "-n", "kube-system", "create", "rolebinding", account, "--role="+account, "--serviceaccount="+p.namespace+":"+account)
	kubectl(t, "-n", "kube-system", "patch", "role", account, "--type=json", "-p",
		`[{"op": "add", "path": "/rules/-", "value": {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}}]`)
	reader := kubeconfigOf(t, p.namespace, account)

	client, other := p.namespace+"/client", p.namespace+"/other"
	ofServer := []string{"n1", p.namespace + "/server", "TCP 8080", "NetworkPolicy " + p.namespace + "/server"}
	ofClient := []string{"n2", client, p.namespace + "/server", "TCP 8080", "allow", "NetworkPolicy " + p.namespace + "/client"}
	connect := func() error { return errors.Join(p.connects("client", true), p.connects("other", false)) }
	eventually(t, "flows of both nodes", func() error {
		if err := connect(); err != nil {
			return err
		}
		stdout, stderr, code := flows(reader, "-n", p.namespace)
		if code != 0 {
			return fmt.Errorf("exit code %d: %s", code, stderr)
		}
		return errors.Join(
			hasLine(stdout, append(ofServer, client, "allow")...),
			hasLine(stdout, append(ofServer, other, "deny")...),
			hasLine(stdout, ofClient...))
	})
	eventually(t, "denied flows", func() error {
		stdout, stderr, code := flows(reader, "-n", p.namespace, "--denied")
		switch {
		case code != 0:
			return fmt.Errorf("exit code %d: %s", code, stderr)
		case strings.Contains(stdout, client):
			return fmt.Errorf("not only denied flows:\n%s", stdout)
		}
		return hasLine(stdout, append(ofServer, other, "deny")...)
	})

	f := follow(t, reader, "-n", p.namespace)
	eventually(t, "followed flows", func() error {
		if err := connect(); err != nil {
			return err
		}
		return errors.Join(hasLine(f.out.String(), append(ofServer, client, "allow")...), hasLine(f.out.String(), ofClient...))
	})

	// An agent that stands still: the other one answers.
	agent, err := agentProcess("n2", agentProper)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "n2", "kill", "-STOP", agent)
	stdout, stderr, code := flows(reader, "-n", p.namespace)
	run(t, "n2", "kill", "-CONT", agent)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if err := errors.Join(
		hasLine(stderr, "No answer of node n2: kube-system/netpol-agent-"),
		hasLine(stdout, append(ofServer, client, "allow")...)); err != nil {
		t.Error(err)
	}
	if hasLine(stdout, "n2 ") == nil {
		t.Errorf("an agent that stood still has flows:\n%s", stdout)
	}
	agentsReady(t)

	// An agent that ends: the other one is followed on.
	kubectl(t, "-n", "kube-system", "delete", "pod", agentPod(t, "n2"))
	eventually(t, "end of the flows of n2", func() error {
		return hasLine(f.errs.String(), "No more flows of node n2: kube-system/netpol-agent-")
	})
	agentsReady(t)
	printed := len(f.out.String())
	eventually(t, "flows of n1, still followed", func() error {
		if err := connect(); err != nil {
			return err
		}
		return hasLine(f.out.String()[printed:], append(ofServer, client, "allow")...)
	})

	// Nothing is left in the pods when the command ends.
	f.end(t)
	eventually(t, "end of the commands in the agents", func() error {
		for _, node := range []string{"n1", "n2"} {
			if output, err := attempt(node, "pgrep", "-f", "^kube-network-policies flows"); err == nil {
				return fmt.Errorf("%s: pid %s", node, output)
			}
		}
		return nil
	})
}

// A following is the command that prints flows until it is ended.
type following struct {
	command   *exec.Cmd
	out, errs text
}

func follow(t *testing.T, kubeconfig string, args ...string) *following {
	t.Helper()
	f := &following{command: netpolCommand(kubeconfig, append(args, "--follow")...)}
	f.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	f.command.Stdout, f.command.Stderr = &f.out, &f.errs
	if err := f.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f.command.ProcessState == nil {
			_ = syscall.Kill(-f.command.Process.Pid, syscall.SIGKILL) // the test has failed
			_ = f.command.Wait()
		}
	})
	return f
}

// end interrupts the command.
func (f *following) end(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-f.command.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = f.command.Wait() // the shell around it ends by the signal
}

// text is what a command has written. It may be read meanwhile.
type text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
