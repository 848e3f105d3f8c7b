package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is a server that runs until it is stopped, and no longer than the test process.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string        // file
	exited chan struct{} // closed when it has ended
}

// start runs a program in folder. Its output goes to a file there.
func start(folder, name, binary string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(folder, name+".log"), exited: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = folder, log, log
	// A test that is killed or times out cannot stop its servers.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// run starts the process and waits until it ends, on one thread: the kernel kills a process
// when the thread that started it ends (Pdeathsig), and a lab ends threads.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(p.exited)
	_ = p.cmd.Wait() // it is killed, or its log says why it ended
}

// stop kills the process and waits for it.
func (p *process) stop() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s has ended by itself: %s", p.name, p.logs())
	default:
	}
	_ = p.cmd.Process.Kill() // fails only when it has just ended
	<-p.exited
	return nil
}

// waitReady waits until ready succeeds.
func (p *process) waitReady(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s has ended: %s", p.name, p.logs())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s", p.name, err, p.logs())
		case <-tick.C:
		}
	}
}

// logs returns the end of the process's log.
func (p *process) logs() string {
	const enough = 4096 // bytes
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-enough):])
}
