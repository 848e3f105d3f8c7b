// Package integration tests with real API servers: the agent's informers, the rights
// that install.yaml and install-anp.yaml grant, and the status writer. The servers
// are the newest Kubernetes that can be built and 1.27, the last one whose
// NetworkPolicy has a status. The administrators' kinds have the definitions of their
// releases, as far as the servers accept them.
//
// The servers are built once and cached, see the package servers. Build them before
// the tests, which would time out otherwise:
//
//	go run ./servers/build
//	go test ./...
package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
)

// server is an API server that all tests share. It is started when the first
// test asks for it.
type server struct {
	name    string
	release servers.Release
	args    []string

	once  sync.Once
	plane *controlplane.ControlPlane
	err   error
}

var (
	newest    = &server{name: "newest", release: servers.Newest}
	statusOn  = &server{name: "1.27 with NetworkPolicyStatus", release: servers.WithStatus, args: []string{"--feature-gates=NetworkPolicyStatus=true"}}
	statusOff = &server{name: "1.27", release: servers.WithStatus}

	fleet    = []*server{newest, statusOn, statusOff}
	releases = []*server{newest, statusOff} // for what does not depend on the gate
)

// scratch is a folder for what the tests share.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "integration-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = stop()
		os.Exit(1)
	}()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// stop ends all servers and removes the shared folder.
var stop = sync.OnceValue(func() error {
	var errs []error
	for _, s := range fleet {
		s.once.Do(func() {}) // from here on it is not started any more
		if s.plane == nil {
			continue
		}
		if err := s.plane.Stop(); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(scratch))...)
})

// start returns the server's control plane. With the variable ONLY_BUILT it skips the test if
// the server is an old one that has not been built.
func (s *server) start(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	if s != newest && os.Getenv("ONLY_BUILT") != "" {
		if missing, err := s.release.Missing(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(missing) > 0 {
			t.Skipf("%s is not built: go run ./servers/build", s.name)
		}
	}
	s.once.Do(func() {
		s.plane, s.err = controlplane.Start(context.Background(), controlplane.Config{Release: s.release, Args: s.args, Log: os.Stderr})
	})
	if s.err != nil {
		t.Fatalf("start %s: %v", s.name, s.err)
	}
	return s.plane
}

// on runs a test on each of some servers.
func on(t *testing.T, some []*server, test func(*testing.T, *controlplane.ControlPlane)) {
	for _, s := range some {
		t.Run(s.name, func(t *testing.T) { test(t, s.start(t)) })
	}
}
