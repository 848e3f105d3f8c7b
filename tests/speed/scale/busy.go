package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
)

const (
	// busyPerCore is the load of a busy node: processes per core that never wait. They have
	// the priority of the agent. On two cores, each thread of the agent then gets the share of
	// a pod that requests 100m on a node on which all CPU time is requested.
	busyPerCore = 10
	// ownNice is the priority of this process during that: probes and the API server would be
	// on other machines, which are not busy.
	ownNice = -19
)

// busy measures latencies while the node is busy.
func (m *measurement) busy(ctx context.Context) error {
	stop, err := spin(busyPerCore * runtime.NumCPU())
	if err != nil {
		return err
	}
	defer stop()
	if err := setPriority(os.Getpid(), ownNice); err != nil {
		return err
	}
	return m.latencies(ctx, "Busy", m.rate, nil)
}

// setPriority sets the priority of a process's threads. Threads that it starts later
// inherit it.
func setPriority(pid, nice int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, id, nice); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("set the priority of thread %d to %d: %w", id, nice, err)
		}
	}
	return nil
}

// spin starts n processes that never wait. They end when stop is called or this process
// ends.
func spin(n int) (stop func(), err error) {
	var processes []*exec.Cmd
	stop = func() {
		for _, p := range processes {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
	for range n {
		p := exec.Command("sh", "-c", `while kill -0 "$PPID"; do :; done`)
		if err := p.Start(); err != nil {
			stop()
			return nil, err
		}
		processes = append(processes, p)
	}
	return stop, nil
}
