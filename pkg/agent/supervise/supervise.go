// Package supervise runs a program as a worker process and restarts it at once when it
// crashes. It does not know what the worker does and reads none of its input, so that input
// which crashes the worker cannot crash the supervisor.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Config configures Run.
type Config struct {
	// Path is the program, and Args are its arguments, without its name.
	Path string
	Args []string
	// Env returns the environment of a worker after this number of restarts.
	Env func(restarts int) []string
	// MaxCrashes within Window end the supervisor, so that the kubelet sees the crash loop.
	MaxCrashes int
	Window     time.Duration
}

// supervisor is the state of Run. Its methods belong to one goroutine.
type supervisor struct {
	cfg     Config
	logger  klog.Logger
	worker  *os.Process
	started time.Time
	crashes []time.Time // within the window
	total   int
}

// Run starts the worker and restarts it after each crash, until it exits with status 0 or has
// crashed MaxCrashes times within Window. When ctx ends, Run sends SIGTERM to the worker and
// waits for it. Run returns the exit status of the last worker as shells do: 128 plus the
// signal that killed it. It returns an error if a worker cannot be started.
//
// Run reaps all children of this process: it must have none that other code waits for.
func Run(ctx context.Context, cfg Config) (int, error) {
	// The kernel sends Pdeathsig when the thread that started the worker ends (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := &supervisor{cfg: cfg, logger: klog.LoggerWithName(klog.FromContext(ctx), "supervise")}
	for {
		if err := s.start(); err != nil {
			return 1, err
		}
		status := s.wait(ctx)
		if ctx.Err() != nil || status == 0 || s.crashed(status) {
			return status, nil
		}
	}
}

func (s *supervisor) start() error {
	worker, err := os.StartProcess(s.cfg.Path, append([]string{s.cfg.Path}, s.cfg.Args...), &os.ProcAttr{
		Env:   s.cfg.Env(s.total),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM},
	})
	if err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	s.worker, s.started = worker, time.Now()
	s.logger.Info("Worker started", "pid", worker.Pid, "restarts", s.total)
	return nil
}

// wait waits for the worker and returns its exit status.
func (s *supervisor) wait(ctx context.Context) int {
	stop := context.AfterFunc(ctx, func() {
		if err := s.worker.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.logger.Error(err, "Worker not asked to end")
		}
	})
	status := await(s.worker.Pid)
	stop()
	_ = s.worker.Release()
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// await reaps children until the one with this pid has ended. Process 1 of a container also
// inherits processes that have lost their parents.
func await(pid int) unix.WaitStatus {
	for {
		var status unix.WaitStatus
		child, err := unix.Wait4(-1, &status, 0, nil)
		if child == pid || err != nil && !errors.Is(err, unix.EINTR) {
			return status
		}
	}
}

// crashed records a crash. It reports whether there were too many.
func (s *supervisor) crashed(status int) bool {
	now := time.Now()
	s.total++
	s.crashes = append(s.crashes, now)
	for now.Sub(s.crashes[0]) > s.cfg.Window {
		s.crashes = s.crashes[1:]
	}
	tooMany := len(s.crashes) >= s.cfg.MaxCrashes
	s.logger.Error(nil, "Worker crashed", "status", status, "after", now.Sub(s.started).Round(time.Millisecond),
		"crashes", len(s.crashes), "within", s.cfg.Window, "restart", !tooMany)
	return tooMany
}
