// Package controlplane runs a kube-apiserver and its etcd for tests: on loopback, in a folder
// of their own, for as long as the process that started them lives. There are no nodes or
// controllers: only objects that a test writes exist.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
)

const (
	// readyTimeout is how long a server may take to start on a busy machine.
	readyTimeout = 3 * time.Minute
	// pollInterval is how often a server is asked whether it is ready.
	pollInterval = 100 * time.Millisecond
)

// Config selects the servers to run.
type Config struct {
	Release servers.Release
	// Args are further flags of the API server.
	Args []string
	// Log receives the progress of builds, which take minutes.
	Log io.Writer
}

// ControlPlane is a running API server with its etcd. Its methods must not be called
// concurrently; its clients may.
type ControlPlane struct {
	folder string
	port   int
	args   []string // of the API server
	etcd   *process
	api    *process
	binary string // of the API server
}

// Start returns when the API server is ready. Stop must be called.
func Start(ctx context.Context, cfg Config) (_ *ControlPlane, err error) {
	etcd, err := servers.Etcd.Build(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	kube, err := cfg.Release.Build(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "controlplane-")
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{folder: folder, binary: filepath.Join(kube, "kube-apiserver")}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if c.port, err = freePort(); err != nil {
		return nil, err
	}
	if err := writeSecrets(folder); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx, filepath.Join(etcd, "etcd")); err != nil {
		return nil, err
	}
	c.args = append(c.flags(), cfg.Args...)
	return c, c.StartAPIServer(ctx)
}

// Stop ends both servers and removes what they wrote.
func (c *ControlPlane) Stop() error {
	err := c.StopAPIServer()
	if c.etcd != nil {
		err = errors.Join(err, c.etcd.stop())
	}
	return errors.Join(err, os.RemoveAll(c.folder))
}

// StopAPIServer ends the API server at once, like a crash. It keeps its port.
func (c *ControlPlane) StopAPIServer() error {
	if c.api == nil {
		return nil
	}
	err := c.api.stop()
	c.api = nil
	return err
}

// PauseAPIServer stops the API server as a debugger would: the kernel still acknowledges
// packets of its connections. ResumeAPIServer continues it.
func (c *ControlPlane) PauseAPIServer() error { return c.api.cmd.Process.Signal(syscall.SIGSTOP) }

// ResumeAPIServer continues a paused API server.
func (c *ControlPlane) ResumeAPIServer() error { return c.api.cmd.Process.Signal(syscall.SIGCONT) }

// StartAPIServer starts the API server at its old address, this time with more flags, and
// returns when it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context, more ...string) (err error) {
	if c.api, err = start(c.folder, "kube-apiserver", c.binary, slices.Concat(c.args, more)...); err != nil {
		return err
	}
	return c.api.waitReady(ctx, c.ready)
}

// Address is the host and port of the API server.
func (c *ControlPlane) Address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
}

// APIServerPID is the process ID of the API server.
func (c *ControlPlane) APIServerPID() int { return c.api.cmd.Process.Pid }

// Logs returns the log of the API server.
func (c *ControlPlane) Logs() string { return c.api.logs() }

// ready reports whether the API server answers and has its own objects in place.
func (c *ControlPlane) ready(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Admin())
	if err != nil {
		return err
	}
	_, err = client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// flags are the flags that every API server here needs. Features that depend on nodes,
// controllers or service accounts in each namespace are off.
func (c *ControlPlane) flags() []string {
	return []string{
		"--etcd-servers=unix://" + filepath.Join(c.folder, etcdSocket),
		// Only tests compact.
		"--etcd-compaction-interval=0",
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--secure-port=" + strconv.Itoa(c.port),
		"--cert-dir=" + c.folder,
		"--tls-cert-file=" + filepath.Join(c.folder, certFile),
		"--tls-private-key-file=" + filepath.Join(c.folder, keyFile),
		"--token-auth-file=" + filepath.Join(c.folder, tokenFile),
		// The key of the server also signs the tokens of service accounts.
		"--service-account-key-file=" + filepath.Join(c.folder, keyFile),
		"--service-account-signing-key-file=" + filepath.Join(c.folder, keyFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount",
	}
}

// freePort returns a port on which no process listens. If another process uses it before the
// server does, the server ends with an error.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
