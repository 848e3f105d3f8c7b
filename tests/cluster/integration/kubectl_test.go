package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
)

// kubectl runs the program with the credentials of one user.
type kubectl struct {
	t      *testing.T
	binary string
	home   string // its own, with the kubeconfig
}

func newKubectl(t *testing.T, as *rest.Config) *kubectl {
	t.Helper()
	folder, err := servers.Newest.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	k := &kubectl{t, filepath.Join(folder, "kubectl"), t.TempDir()}
	if err := controlplane.Kubeconfig(as, filepath.Join(k.home, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return k
}

// try returns the output of kubectl, or an error with its messages.
func (k *kubectl) try(input string, args ...string) (string, error) {
	return k.with(k.t.Context(), input, args...)
}

func (k *kubectl) with(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, k.binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+k.home, "KUBECONFIG="+filepath.Join(k.home, "kubeconfig"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(output), err
}

// run fails the test if kubectl fails.
func (k *kubectl) run(args ...string) string {
	k.t.Helper()
	return must[string](k.t)(k.try("", args...))
}

// apply writes a policy with strict field validation, and deletes it at the end of
// the test.
func (k *kubectl) apply(manifest string) {
	k.t.Helper()
	must[string](k.t)(k.try(manifest, "apply", "--server-side", "--validate=strict", "-f", "-"))
	k.t.Cleanup(func() {
		_, _ = k.with(context.Background(), manifest, "delete", "--ignore-not-found", "-f", "-")
	})
}
