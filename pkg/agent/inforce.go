package agent

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// following returns how the agent follows each kind, and how often versions have gone back.
func (a *agent) following() (kinds []inforce.Kind, restores int) {
	following, restores := a.cache.Following()
	for _, f := range following {
		k := inforce.Kind{Kind: f.Kind, Seen: f.Seen}
		if f.Err != nil {
			k.Behind = f.Err.Error()
		}
		kinds = append(kinds, k)
	}
	return kinds, restores
}

// uncertain returns the pods of which an address may be another's, and the current snapshot.
func (a *agent) uncertain() ([]*policy.Endpoint, *policy.Snapshot) {
	snapshot, _ := a.steering.latest()
	return a.cache.Uncertain(), snapshot
}

// notInForce returns why packets may be decided by something else than the snapshot whose enforcement
// was confirmed last, nil if they are not.
func (a *agent) notInForce(ctx context.Context) error {
	if a.cfg.Audit {
		return errors.New("--audit: policies are evaluated, and none is enforced")
	}
	if err := errors.Join(a.live(), a.readiness()); err != nil {
		return err
	}
	if err := a.steering.steerer.Verify(ctx); err != nil {
		return fmt.Errorf("steering: %w", err)
	}
	if err := a.blocker.Healthy(); err != nil {
		return err
	}
	if classes := a.single.Classes; classes != nil {
		return classes.Healthy()
	}
	return nil
}
