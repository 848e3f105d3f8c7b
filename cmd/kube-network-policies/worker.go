package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/supervise"
)

const (
	// workerVar is the environment variable of a worker of the supervisor: when the first
	// one was started, as in agent.Config, and how often it was started again.
	workerVar = "KUBE_NETWORK_POLICIES_WORKER"
	// crashWindow is the time in which --max-crashes end the supervisor.
	crashWindow = time.Minute
)

// exitStatus is the error of a worker that has ended with this status, and has logged why.
type exitStatus int

// Error implements error.
func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// superviseWorkers runs this program again, as worker, with the same arguments.
func superviseWorkers(ctx context.Context, maxCrashes int) error {
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
		err = exitStatus(status)
	}
	return err
}

// setWorker completes cfg by what the supervisor has said, if there is one.
func setWorker(cfg *agent.Config, env string) error {
	if env == "" {
		return nil
	}
	if n, err := fmt.Sscanf(env, "%d,%d", &cfg.Started, &cfg.Restarts); n != 2 {
		return fmt.Errorf("%s=%s: %w", workerVar, env, err)
	}
	return nil
}
