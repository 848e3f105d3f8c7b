package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/agent/supervise"
)

const (
	// workerVar is the environment variable of a supervised worker: the start of the first
	// worker, as in agent.Config, and the number of restarts. Tests set it to 0,0 to run a
	// worker without a supervisor.
	workerVar = "KUBE_NETWORK_POLICIES_WORKER"
	// maxCrashes within crashWindow end the supervisor. A single crash then costs a fraction
	// of a second instead of the kubelet's back-off, and the kubelet handles crash loops.
	maxCrashes  = 5
	crashWindow = time.Minute
)

// superviseWorkers runs this program again, as worker, with the same arguments.
func superviseWorkers(ctx context.Context) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	started, err := agent.StartTime()
	if err != nil {
		return err
	}
	status, err := supervise.Run(ctx, supervise.Config{
		Path: path,
		Args: os.Args[1:],
		Env: func(restarts int) []string {
			return append(os.Environ(), fmt.Sprintf("%s=%d,%d", workerVar, started, restarts))
		},
		MaxCrashes: maxCrashes,
		Window:     crashWindow,
	})
	if err == nil && status != 0 {
		err = command.ExitStatus(status)
	}
	return err
}

// setWorker sets the fields of cfg that the supervisor passes in env.
func setWorker(cfg *agent.Config, env string) error {
	if n, err := fmt.Sscanf(env, "%d,%d", &cfg.Started, &cfg.Restarts); n != 2 {
		return fmt.Errorf("%s=%s: %w", workerVar, env, err)
	}
	return nil
}
