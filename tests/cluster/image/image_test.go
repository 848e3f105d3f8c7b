// Package image builds the Dockerfile as it is and checks the images, without Docker and
// without a registry: buildah builds, from base images that the test makes itself. It needs
// root, Debian's packages and Go's modules.
package image

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

const (
	repository = "../../.."
	version    = "v9.8.7" // of the programs that are built
)

// config is what an image says about its containers: of the image specification of OCI,
// https://github.com/opencontainers/image-spec/blob/main/config.md.
type config struct {
	User         string
	Env          []string
	Entrypoint   []string
	Cmd          []string
	WorkingDir   string
	Volumes      map[string]struct{}
	ExposedPorts map[string]struct{}
}

// image is an image that was built, and a folder with its files.
type image struct {
	t      *testing.T
	config config
	root   string
}

func TestImages(t *testing.T) {
	s := newStore(t)
	s.makeBase()
	t.Run("agent", func(t *testing.T) {
		i := s.build(t)
		i.checkConfig(config{User: "0:0", Env: []string{"PATH=/usr/bin"}, Entrypoint: []string{"kube-network-policies"}})
		i.checkFiles("usr/bin/kube-network-policies", "usr/bin/status-writer")
		i.checkOutput("version "+version+" ", "/usr/bin/kube-network-policies", "--version")
		i.checkOutput("version "+version+" ", "/usr/bin/status-writer", "--version")
		i.checkAgent()
	})
	t.Run("prober", func(t *testing.T) {
		i := s.build(t, "--target", "prober")
		i.checkConfig(config{User: "65532:65532", Env: []string{"PATH=/usr/bin"}, Entrypoint: []string{"prober"}})
		i.checkFiles("usr/bin/prober")
		i.checkOutput("-listen", "/usr/bin/prober", "serve", "-h")
		i.checkOutput("version "+version+" ", "/usr/bin/prober", "version")
	})
}

func (i image) checkConfig(want config) {
	i.t.Helper()
	if diff := cmp.Diff(want, i.config); diff != "" {
		i.t.Errorf("the configuration differs, -want +got:\n%s", diff)
	}
}

// checkFiles checks that there are these programs and nothing else: no library, no shell, no
// package manager, and that it gives no rights to who executes it.
func (i image) checkFiles(programs ...string) {
	i.t.Helper()
	var size int64
	found := 0
	err := fs.WalkDir(os.DirFS(i.root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		if slices.Contains(programs, path) {
			found++
		} else {
			i.t.Errorf("the image has %s", path)
		}
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			i.t.Errorf("%s has the mode %s", path, info.Mode())
		}
		if n, err := unix.Lgetxattr(filepath.Join(i.root, path), "security.capability", nil); err == nil && n > 0 {
			i.t.Errorf("%s has capabilities", path)
		}
		return nil
	})
	if err != nil {
		i.t.Fatal(err)
	}
	if found < len(programs) {
		i.t.Errorf("the image has %d of %q", found, programs)
	}
	i.t.Logf("%.1f MB", float64(size)/1e6)
}

// command is one that runs in the image.
func (i image) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = "/", i.config.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root}
	return cmd
}

func (i image) checkOutput(want, name string, args ...string) {
	i.t.Helper()
	output, err := i.command(name, args...).CombinedOutput()
	if err != nil || !strings.Contains(string(output), want) {
		i.t.Errorf("%s %q prints %q (%v), want %q", name, args, output, err, want)
	}
}

// manifests are a node and a policy for its pods.
const manifests = `
apiVersion: v1
kind: Node
metadata: {name: node}
spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: deny}
spec: {podSelector: {}}
`

// checkAgent checks that an agent becomes ready with nothing but what is in the image and
// what a container is given, in a network of its own.
func (i image) checkAgent() {
	i.t.Helper()
	for _, folder := range []string{"dev", "proc", "run"} {
		if err := os.Mkdir(filepath.Join(i.root, folder), 0o755); err != nil {
			i.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(i.root, "run", "cluster.yaml"), []byte(manifests), 0o644); err != nil {
		i.t.Fatal(err)
	}
	const socket = "--probe-socket=/run/probe"
	var log bytes.Buffer
	agent := exec.Command("unshare", "--net", "--mount", "sh", "-ec", `
		mount --bind /dev "$0/dev"
		mount -t proc -o ro proc "$0/proc"
		exec /usr/sbin/chroot "$0" "$@"`,
		i.root, "/usr/bin/kube-network-policies", "--manifests=/run", "--hostname-override=node", "--metrics-bind-address=127.0.0.1:9080", socket)
	agent.Env, agent.Stdout, agent.Stderr = i.config.Env, &log, &log
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := agent.Start(); err != nil {
		i.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	var last []byte
	ctx, cancel := context.WithTimeout(i.t.Context(), time.Minute)
	defer cancel()
	err := lab.Poll(ctx, func() (bool, error) {
		select {
		case err := <-ended:
			ended <- err
			return false, err
		default:
		}
		output, err := i.command("/usr/bin/kube-network-policies", "probe", socket, "readyz").CombinedOutput()
		last = output
		return err == nil, nil
	})
	_ = agent.Process.Signal(syscall.SIGTERM) // fails if it has ended, which is an error below
	if ended := <-ended; err != nil || ended != nil {
		i.t.Errorf("the agent is not ready: %v, %s; it ended: %v\n%s", err, last, ended, log.String())
	}
}
