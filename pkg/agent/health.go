package agent

import (
	"errors"
	"fmt"
	"time"
)

// live fails when queued packets get no verdict: then a restart helps.
func (a *agent) live() error {
	var errs []error
	for _, q := range a.queues {
		errs = append(errs, q.Live(time.Now()))
	}
	return errors.Join(errs...)
}

// readiness fails until the first snapshot is active, and while rules cannot be written, a
// queue is bound by another process, or the agent's node name does not fit. A restart would
// not help.
func (a *agent) readiness() error {
	var errs []error
	if !a.metrics.hasSnapshot() {
		errs = append(errs, errors.New("no snapshot of the cluster yet"), a.cache.Listed())
	}
	if err := a.cache.Healthy(); err != nil {
		errs = append(errs, err)
	}
	if err := a.node.Healthy(); err != nil {
		errs = append(errs, err)
	}
	if !a.peers.Listening() {
		errs = append(errs, errors.New("not all queues are bound"))
	}
	if err := a.steerer.Healthy(); err != nil {
		errs = append(errs, fmt.Errorf("steering: %w", err))
	}
	if a.links != nil {
		if err := a.links.Healthy(); err != nil {
			errs = append(errs, fmt.Errorf("interfaces: %w", err))
		}
	}
	if err := a.reuse.Healthy(); err != nil {
		errs = append(errs, fmt.Errorf("connections of stale addresses are not removed: %w", err))
	}
	if a.needsCNI {
		if err := a.cni.Healthy(); err != nil {
			errs = append(errs, fmt.Errorf("addresses of new pods: %w", err))
		}
	}
	return errors.Join(errs...)
}
