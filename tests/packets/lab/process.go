package lab

import (
	"fmt"
	"os/exec"
	"syscall"
)

// Process is a program that runs on a host, at the latest until this process ends.
type Process struct {
	cmd   *exec.Cmd
	log   output
	ended chan struct{}
}

// Start starts a program in the host's network namespace, with the rights of this process.
func (h *Host) Start(program string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	wait, err := h.ns.start(p.cmd, nil)
	if err != nil {
		return nil, fmt.Errorf("on %s: %w", h.Name, err)
	}
	go func() {
		<-wait
		close(p.ended)
	}()
	return p, nil
}

// Log returns what the process has printed so far.
func (p *Process) Log() string { return p.log.String() }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Stop sends a signal that ends the process, and waits until it has ended.
func (p *Process) Stop(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal) // an error means that it has ended
	<-p.ended
}
