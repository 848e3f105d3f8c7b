package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace without a name. It exists while a thread, a process or
// the open file refers to it, so nothing is left behind however this process ends.
type namespace struct {
	file   *os.File
	calls  chan func()
	closed chan struct{}
}

// newNamespace creates a namespace and a thread in it that runs the functions of do.
func newNamespace() (*namespace, error) {
	n := &namespace{calls: make(chan func()), closed: make(chan struct{})}
	result := make(chan error)
	onOwnThread(func() {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
		result <- err
		if err != nil {
			return
		}
		for {
			select {
			case call := <-n.calls:
				call()
			case <-n.closed:
				return
			}
		}
	})
	if err := <-result; err != nil {
		return nil, fmt.Errorf("create a network namespace: %w", err)
	}
	return n, nil
}

// onOwnThread runs f on a thread that no other goroutine uses, now or later. It avoids the
// main thread, because /proc/self refers to that one.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			otherThread := make(chan struct{})
			go func() {
				runtime.LockOSThread()
				close(otherThread)
				f()
			}()
			<-otherThread
			return
		}
		f() // the thread is never unlocked, so it ends with the goroutine
	}()
}

// do runs f on the thread of the namespace. Calls are serialised, so f must not wait for
// the network. Sockets that f opens stay in the namespace and may be used from any
// goroutine.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case n.calls <- func() { done <- f() }:
		return <-done
	case <-n.closed:
		return net.ErrClosed
	}
}

// path names the namespace for other processes while this process lives.
func (n *namespace) path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

// close releases the namespace. The kernel removes it with the last process and socket in
// it.
func (n *namespace) close() {
	close(n.closed)
	n.file.Close()
}

// start starts cmd inside the namespace and returns a channel for the result of Wait. setup
// runs before, on the thread that forks. The process is killed when this process ends.
func (n *namespace) start(cmd *exec.Cmd, setup func() error) (<-chan error, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // sent when the thread ends, which therefore waits below
	started := make(chan error)
	ended := make(chan error, 1)
	onOwnThread(func() {
		err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET)
		if err == nil && setup != nil {
			err = setup()
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return ended, nil
}

// run runs a command inside the namespace and returns its output.
func (n *namespace) run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	printed := &output{}
	cmd.Stdout, cmd.Stderr = printed, printed
	cmd.Stdin = strings.NewReader(stdin)
	ended, err := n.start(cmd, nil)
	if err != nil {
		return "", err
	}
	if err := <-ended; err != nil {
		return printed.String(), fmt.Errorf("%s %v: %w: %s", name, args, err, printed)
	}
	return printed.String(), nil
}
