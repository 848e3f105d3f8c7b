package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
	"sigs.k8s.io/kube-network-policies/pkg/verdictcache"
)

// newVerdictCache returns nil if nothing is to be remembered.
func (a *agent) newVerdictCache(cfg Config, reg prometheus.Registerer) *verdictcache.Cache {
	if cfg.RememberMark == 0 {
		return nil
	}
	return verdictcache.New(verdictcache.Config{
		Kernel:     rememberedVerdicts{a},
		AllowedFor: cfg.RememberVerdicts,
		Evaluate:   func(c packet.Class) (policy.Decision, bool) { return a.enforcer.EvaluateClass(c) },
		Flushed:    func() { a.queues[0].Flushed() },
		Alone:      func() bool { return !a.peers.others(a.numbers) },
		Count:      func(c packet.Class, d policy.Decision, packets uint64) { a.enforcer.CountRemembered(c, d, packets) },
		Registerer: reg,
	})
}

// remembering returns what records decisions, nil if nothing is remembered.
func (a *agent) remembering() enforce.Verdicts {
	if a.verdicts == nil {
		return nil
	}
	return a.verdicts
}

// remembers returns the decision on a class that the kernel remembers, and since when.
func (a *agent) remembers(c packet.Class) (d policy.Decision, since time.Time, ok bool) {
	if a.verdicts == nil {
		return policy.Decision{}, time.Time{}, false
	}
	return a.verdicts.Remembers(c)
}

// forget has the kernel forget the verdicts that a change since the snapshot before turns.
// Packets are decided by the snapshot after it already.
func (a *agent) forget(ctx context.Context, before *policy.Snapshot, change conntrack.Change) {
	if a.verdicts == nil || before == nil {
		return // nothing is remembered before the first snapshot
	}
	a.verdicts.Changed(ctx, change.Addrs, change.All)
}

// rememberedVerdicts are the verdicts in the table of an agent.
type rememberedVerdicts struct{ agent *agent }

func (r rememberedVerdicts) Forget(ctx context.Context, allowed, denied []packet.Class) error {
	return r.agent.steerer.ForgetVerdicts(ctx, allowed, denied)
}

func (r rememberedVerdicts) ForgetAll(ctx context.Context) error {
	return r.agent.steerer.ForgetAllVerdicts(ctx)
}

func (r rememberedVerdicts) Deny(ctx context.Context, classes []packet.Class, d time.Duration) error {
	return r.agent.steerer.DenyClasses(ctx, classes, d)
}

func (r rememberedVerdicts) All(ctx context.Context, yield func(verdictcache.Remembered)) error {
	return r.agent.steerer.RememberedVerdicts(ctx, func(v steer.RememberedVerdict) { yield(verdictcache.Remembered(v)) })
}
