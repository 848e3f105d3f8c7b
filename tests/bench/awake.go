package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// awake keeps every core from going to sleep, by processes that take what nobody
// else wants. In a virtual machine a core that sleeps takes longer to wake than all
// that is measured, and whether one is asleep is up to chance. The processes end
// with stop, or else when this one does.
func awake() (stop func(), err error) {
	var running []*exec.Cmd
	stop = func() {
		for _, cmd := range running {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	loop := fmt.Sprintf("while [ -d /proc/%d ]; do :; done", os.Getpid())
	for range runtime.NumCPU() {
		cmd := exec.Command("nice", "-n", "19", "chrt", "--idle", "0", "sh", "-c", loop)
		if err := cmd.Start(); err != nil {
			stop()
			return nil, fmt.Errorf("keep cores awake: %w", err)
		}
		running = append(running, cmd)
	}
	return stop, nil
}
