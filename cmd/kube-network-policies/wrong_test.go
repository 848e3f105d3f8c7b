package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWrongInvocations: whoever starts a program wrongly gets one line that says what is wrong. Status 2
// stands for arguments and the files that they name, 1 for the machine.
func TestWrongInvocations(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("some invocations need a network namespace")
	}
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "cluster"), 0o700); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", folder, ".", "../status-writer").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for name, text := range map[string]string{"malformed": "a: [", "empty": "{apiVersion: v1, kind: Config}", "cluster/x.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: x}}"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const withoutRights = "setpriv --bounding-set=-net_admin --inh-caps=-net_admin "
	for _, tt := range []struct {
		invocation string
		status     int
		want       string
	}{
		{"kube-network-policies", 2, "--kubeconfig is missing: outside of a pod it names the file for the API server"},
		{"kube-network-policies --kubeconfig=/nonexistent", 2, "--kubeconfig=/nonexistent: stat /nonexistent: no such file or directory"},
		{"kube-network-policies --kubeconfig=malformed", 2, `--kubeconfig=malformed: error loading config file "malformed": yaml: line 1: did not find expected node content`},
		{"kube-network-policies --kubeconfig=empty", 2, "--kubeconfig=empty: it names no cluster"},
		{"kube-network-policies cleanpu", 2, "kube-network-policies cleanpu: there is no such command; the commands are cleanup, flows, key, probe, version, and none to run it"},
		{"kube-network-policies --nfqueueid=1", 2, "unknown flag: --nfqueueid: the most similar one is --nfqueue-id"},
		{"kube-network-policies --nfqueue-id=x", 2, "--nfqueue-id=x: must be in 0-65525"},
		{"kube-network-policies --manifests=. --kubeconfig=empty", 2, "--manifests"},
		{"kube-network-policies --manifests=. --metrics-bind-address=here", 2, "--metrics-bind-address=here: "},
		{"kube-network-policies --manifests=cluster --metrics-bind-address=192.0.2.1:9080", 1, `metrics-bind-address \"192.0.2.1:9080\": listen tcp 192.0.2.1:9080: bind: cannot assign requested address`},
		{withoutRights + "kube-network-policies --manifests=cluster", 1, "CAP_NET_ADMIN is missing"},
		{withoutRights + "kube-network-policies cleanup", 1, "CAP_NET_ADMIN is missing"},
		{"kube-network-policies probe redyz", 2, "must be livez, readyz, metrics or table"},
		{"kube-network-policies flows --probe-socket=/nonexistent", 1, "flows at /nonexistent: dial unix /nonexistent: connect: no such file or directory"},
		{"status-writer", 2, "--kubeconfig is missing: outside of a pod it names the file for the API server"},
		{"status-writer --kubeconfig=/nonexistent", 2, "--kubeconfig=/nonexistent: stat /nonexistent: no such file or directory"},
		{"status-writer --pod-readines", 2, "unknown flag: --pod-readines: the most similar one is --pod-readiness"},
		{"status-writer cleanpu", 2, "status-writer cleanpu: there is no such command; the commands are cleanup, version, and none to run it"},
	} {
		t.Run(tt.invocation, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // one that is not wrong would run on
			defer cancel()
			// Where the loopback interface was never up, the kernel lets a process listen at any address.
			cmd := exec.CommandContext(ctx, "sh", "-c", "ip link set lo up; exec "+tt.invocation)
			cmd.Dir, cmd.Env = folder, []string{"PATH=" + folder + ":" + os.Getenv("PATH")}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			said, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != tt.status {
				t.Errorf("%v, want exit status %d", err, tt.status)
			}
			var lines []string
			for l := range strings.Lines(string(said)) {
				if !strings.HasPrefix(l, "I") {
					lines = append(lines, l)
				}
			}
			if len(lines) != 1 || !strings.Contains(lines[0], tt.want) {
				t.Errorf("it says\n%s", said)
			}
		})
	}
}
