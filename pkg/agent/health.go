package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// live fails when queued packets get no verdict, which a restart can repair.
func (a *agent) live() error {
	var errs []error
	for _, q := range a.queues {
		errs = append(errs, q.Live(time.Now()))
	}
	return errors.Join(errs...)
}

// readiness fails while a stage is not ready: until the first snapshot is active, and while rules
// cannot be written, a queue is bound by another process, or the agent's node name does not fit.
// A restart would not help.
func (a *agent) readiness() error { return a.stages.ready() }

// stateTimeout bounds how long a kernel that does not answer delays the description of the agent.
const stateTimeout = time.Second

// state describes the agent for kubectl netpol doctor.
func (a *agent) state() module.State {
	s := module.State{Version: a.cfg.Version}
	if err := a.readiness(); err != nil {
		s.NotReady = strings.Join(strings.Fields(err.Error()), " ")
	}
	if current := a.metrics.current.Load(); current != nil {
		s.Snapshot = &current.at
		pods := map[*policy.Endpoint]bool{} // some have two addresses
		for _, addr := range current.snapshot.Local() {
			pods[current.snapshot.Endpoint(addr)] = true
		}
		s.Pods = len(pods)
	}
	if inForce := a.single.InForce; inForce != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
		defer cancel()
		s.InForce = inForce(ctx)
	}
	return s
}

// table serves what the kernel has of the table.
func (a *agent) table(w http.ResponseWriter, r *http.Request) {
	if err := a.steering.steerer.Describe(r.Context(), w); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// listening is ready while all queues are bound.
func (a *agent) listening() error {
	if slices.ContainsFunc(a.queues, func(q handledQueues) bool { return !q.Bound() }) {
		return errors.New("not all queues are bound")
	}
	return nil
}

// clusterKnown is ready once there is a snapshot, while watches of the cluster are healthy.
func (a *agent) clusterKnown() error {
	var errs []error
	if !a.metrics.hasSnapshot() {
		errs = append(errs, errors.New("no snapshot of the cluster yet"), a.cache.Listed())
	}
	return errors.Join(append(errs, a.cache.Healthy())...)
}

// sandboxesKnown is not ready while the required folder of CNI results cannot be read.
func (a *agent) sandboxesKnown() error {
	if !a.cfg.PodAddressSource.isFolder() {
		return nil
	}
	if err := a.cni.Healthy(); err != nil {
		return fmt.Errorf("addresses of new pods: %w", err)
	}
	return nil
}
