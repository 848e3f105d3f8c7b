package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AgentConfig says how to run the agent on a node.
type AgentConfig struct {
	// Binary is the path of the agent.
	Binary string
	// Manifests is the folder that the agent watches. If it is empty, Args must name an API
	// server.
	Manifests string
	// Metrics is the address of the agent's HTTP endpoints, 127.0.0.1:9080 if zero.
	Metrics netip.AddrPort
	// Args are additional flags.
	Args []string
	// Run are files below /run, by name, that this agent alone has.
	Run map[string]string
	// OneCPU restricts the agent to one CPU, so that it has one queue.
	OneCPU bool
}

// programs is where the main packages of the programs are.
const programs = "sigs.k8s.io/kube-network-policies/cmd/"

// BuildAgent builds the agent of this source tree in dir and returns its path.
func BuildAgent(ctx context.Context, dir string) (string, error) {
	return Build(ctx, dir, "kube-network-policies")
}

// Build is BuildAgent for any program.
func Build(ctx context.Context, dir, name string) (string, error) {
	binary := filepath.Join(dir, name)
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", binary, programs+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, output)
	}
	return binary, nil
}

// Agent is an agent process. It runs as root with only CAP_NET_ADMIN and cannot gain other
// capabilities, as in a pod of install.yaml.
type Agent struct {
	node    *Node
	metrics netip.AddrPort
	cmd     *exec.Cmd
	log     output
	client  *http.Client

	ended chan struct{} // closed when the process has ended
	err   error         // of Wait; read it only after ended is closed
}

// defaultMetrics is the default of AgentConfig.Metrics.
var defaultMetrics = netip.MustParseAddrPort("127.0.0.1:9080")

// StartAgent starts an agent and does not wait for it.
func (n *Node) StartAgent(cfg AgentConfig) (*Agent, error) {
	if !cfg.Metrics.IsValid() {
		cfg.Metrics = defaultMetrics
	}
	args := append([]string{"--hostname-override", n.Name, "--metrics-bind-address", cfg.Metrics.String()}, cfg.Args...)
	if cfg.Manifests != "" {
		args = append(args, "--manifests", cfg.Manifests)
	}
	a := &Agent{node: n, metrics: cfg.Metrics, cmd: exec.Command(cfg.Binary, args...), ended: make(chan struct{})}
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	a.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return n.Dial(ctx, TCP, cfg.Metrics)
		},
		DisableKeepAlives: true,
	}}
	wait, err := n.ns.start(a.cmd, func() error {
		if cfg.OneCPU {
			if err := keepOneCPU(); err != nil {
				return err
			}
		}
		if err := showRun(cfg.Run); err != nil {
			return err
		}
		return keepOnlyNetAdmin()
	})
	if err != nil {
		return nil, fmt.Errorf("on %s: %w", n.Name, err)
	}
	go func() {
		a.err = <-wait
		close(a.ended)
	}()
	n.agents = append(n.agents, a)
	return a, nil
}

// showRun gives this thread a mount namespace in which /run has nothing but these files.
func showRun(files map[string]string) error {
	if len(files) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for name, text := range files {
		file := filepath.Join("/run", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// keepOnlyNetAdmin removes every capability except CAP_NET_ADMIN from the bounding set of
// this thread. A program that root executes gets the capabilities in this set.
func keepOnlyNetAdmin() error {
	for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
		if capability == unix.CAP_NET_ADMIN {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: this kernel does not have the capability
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}

// keepOneCPU restricts this thread, and the program that it executes, to its first CPU.
func keepOneCPU() error {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &one))
}

// PID returns the process ID.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Log returns the output of the agent so far.
func (a *Agent) Log() string { return a.log.String() }

// Ended is closed when the process has exited.
func (a *Agent) Ended() <-chan struct{} { return a.ended }

// ExitCode returns the exit status of a process that has ended, -1 for a signal.
func (a *Agent) ExitCode() int {
	<-a.ended
	return a.cmd.ProcessState.ExitCode()
}

// WaitReady waits until /readyz answers 200. If the agent exits or ctx ends, the error
// contains the last answer and the log.
func (a *Agent) WaitReady(ctx context.Context) error {
	var last string
	err := Poll(ctx, func() (bool, error) {
		select {
		case <-a.ended:
			return false, fmt.Errorf("it exited: %w", a.err)
		default:
		}
		status, body, err := a.Get(ctx, "/readyz")
		last = fmt.Sprintf("%d %s %v", status, body, err)
		return err == nil && status == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("agent on %s is not ready: %w; last answer: %s; log:\n%s", a.node.Name, err, last, a.Log())
	}
	return nil
}

// Get requests one of the agent's HTTP endpoints.
func (a *Agent) Get(ctx context.Context, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.metrics.String()+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := a.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// Metrics scrapes the agent.
func (a *Agent) Metrics(ctx context.Context) (Metrics, error) {
	status, body, err := a.Get(ctx, "/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err != nil {
		return nil, fmt.Errorf("scrape the agent on %s: %w", a.node.Name, err)
	}
	return parseMetrics(body)
}

// Signal sends a signal to the process.
func (a *Agent) Signal(signal syscall.Signal) error { return a.cmd.Process.Signal(signal) }

// Stop sends SIGTERM and waits until the agent has exited.
func (a *Agent) Stop(ctx context.Context) error {
	if err := a.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-a.ended:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("agent on %s does not exit after SIGTERM: %w; log:\n%s", a.node.Name, ctx.Err(), a.Log())
	}
}

// Kill sends SIGKILL and waits until the agent has exited.
func (a *Agent) Kill() {
	a.cmd.Process.Kill()
	<-a.ended
}

func (n *Node) killAgents() {
	for _, agent := range slices.Backward(n.agents) {
		agent.Kill()
	}
}

// pollInterval is the interval of Poll.
const pollInterval = 10 * time.Millisecond

// Poll polls until the condition holds, returns an error, or ctx ends.
func Poll(ctx context.Context, condition func() (bool, error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if done, err := condition(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
