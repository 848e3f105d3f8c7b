// Package supervise runs a program as a worker process and starts it again at once when it
// crashes. It does not know what the worker does.
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

// Config says what to run, and for how long.
type Config struct {
	// Path is the program, and Args are its arguments, without its name.
	Path string
	Args []string
	// Env returns the environment of a worker that was started again so many times.
	Env func(restarts int) []string
	// MaxCrashes within Window end the supervisor: what runs it sees the crash loop.
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

// Run starts the worker, and starts it again each time it crashes, until it ends with
// status 0 or has crashed MaxCrashes times within Window. When ctx ends, Run sends SIGTERM
// to the worker and waits for its end. Run returns the exit status of the last worker, as
// shells do: 128 and the signal if one has killed it. The error is that of starting a
// worker.
//
// Run waits for all children of this process. There must be no other ones.
func Run(ctx context.Context, cfg Config) (int, error) {
	// The worker gets a signal when the thread that has started it ends.
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

// wait returns the exit status of the worker when it has ended.
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

// await waits for children until the one with this pid has ended. As process 1 of a
// container, children are all processes that have lost their parents.
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
