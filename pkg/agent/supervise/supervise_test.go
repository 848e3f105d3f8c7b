package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary runs itself as supervisor, because Run waits for all children of its
// process, and as worker.
const (
	roleVar     = "SUPERVISE_TEST_ROLE"
	scriptVar   = "SUPERVISE_TEST_SCRIPT" // what each worker does, by number of restarts
	restartsVar = "SUPERVISE_TEST_RESTARTS"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "supervisor":
		os.Exit(supervisorMain())
	case "worker":
		os.Exit(workerMain())
	}
	os.Exit(m.Run())
}

const maxCrashes = 4

func supervisorMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	path, err := os.Executable()
	if err != nil {
		return 99
	}
	status, err := Run(ctx, Config{
		Path: path,
		Args: os.Args[1:],
		Env: func(restarts int) []string {
			return append(os.Environ()[:0:0], roleVar+"=worker", scriptVar+"="+os.Getenv(scriptVar), fmt.Sprintf("%s=%d", restartsVar, restarts))
		},
		MaxCrashes: maxCrashes,
		Window:     time.Hour,
	})
	if err != nil {
		return 98
	}
	return status
}

// workerMain runs its part of the script: exit with a status, kill itself, or wait for
// SIGTERM and exit with 7.
func workerMain() int {
	restarts, _ := strconv.Atoi(os.Getenv(restartsVar))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	fmt.Println("worker", restarts, os.Getpid(), strings.Join(os.Args[1:], " "))
	switch action := strings.Split(os.Getenv(scriptVar), " ")[restarts]; action {
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case "orphan":
		// A child that outlives its parent.
		child := exec.Command("sleep", "0.01")
		if child.Start() != nil {
			return 97
		}
		return 1
	case "wait":
		<-signals
		return 7
	default:
		status, _ := strconv.Atoi(action)
		return status
	}
}

// supervised is a running supervisor.
type supervised struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner // of its workers
	log   *strings.Builder
}

func start(t *testing.T, script string) supervised {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := supervised{cmd: exec.Command(path, "an", "argument"), log: &strings.Builder{}}
	s.cmd.Env = []string{roleVar + "=supervisor", scriptVar + "=" + script, "PATH=" + os.Getenv("PATH")}
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	return s
}

// worker waits until a worker starts and returns its pid.
func (s supervised) worker(t *testing.T, restarts int) int {
	t.Helper()
	if !s.lines.Scan() {
		t.Fatalf("no worker after %d restarts: %v", restarts, s.lines.Err())
	}
	var n, pid int
	if _, err := fmt.Sscanf(s.lines.Text(), "worker %d %d an argument", &n, &pid); err != nil || n != restarts {
		t.Fatalf("worker says %q, want %d restarts (%v)", s.lines.Text(), restarts, err)
	}
	return pid
}

// status waits for the end and returns the exit status.
func (s supervised) status(t *testing.T) int {
	t.Helper()
	if s.lines.Scan() {
		t.Errorf("another worker: %q", s.lines.Text())
	}
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}

func TestWorkersAreStartedAgain(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		workers      int
		want         int
	}{
		{"a worker that ends", "0", 1, 0},
		{"a crash, then an end", "3 0", 2, 0},
		{"killed, then an end", "kill 0", 2, 0},
		{"an orphan is left", "orphan orphan 0", 3, 0},
		{"too many crashes", "1 1 1 5", maxCrashes, 5},
		{"too many crashes, the last by a signal", "1 1 1 kill", maxCrashes, 137},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, tt.script)
			for i := range tt.workers {
				s.worker(t, i)
			}
			if got := s.status(t); got != tt.want {
				t.Errorf("exit status %d, want %d", got, tt.want)
			}
			if got, want := strings.Count(s.log.String(), "Worker crashed"), len(strings.Fields(tt.script)); tt.want == 0 && got != want-1 {
				t.Errorf("%d crashes are logged, want %d:\n%s", got, want-1, s.log)
			}
		})
	}
}

func TestSignalEndsTheWorker(t *testing.T) {
	s := start(t, "2 wait")
	s.worker(t, 0)
	s.worker(t, 1)
	if err := s.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := s.status(t); got != 7 {
		t.Errorf("exit status %d, want that of the worker", got)
	}
}

func TestWorkerEndsWithItsSupervisor(t *testing.T) {
	s := start(t, "wait")
	s.worker(t, 0)
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The worker holds the other end of the pipe, which is closed when the worker ends.
	if s.lines.Scan() {
		t.Errorf("the worker says %q", s.lines.Text())
	}
	if err := s.lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestCrashesOutsideTheWindowAreForgotten(t *testing.T) {
	s := &supervisor{cfg: Config{MaxCrashes: 2, Window: time.Hour}, crashes: []time.Time{time.Now().Add(-2 * time.Hour)}}
	if s.crashed(1) {
		t.Error("an old crash counts")
	}
	if !s.crashed(1) {
		t.Error("two crashes within the window do not end the supervisor")
	}
	if s.total != 2 {
		t.Errorf("%d crashes in total, want 2", s.total)
	}
}
