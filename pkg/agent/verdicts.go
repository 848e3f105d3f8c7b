package agent

import (
	"context"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/verdictcache"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

func (a *agent) newVerdictCache() *verdictcache.Cache {
	return verdictcache.New(verdictcache.Config{
		Kernel:     rememberedVerdicts{a},
		AllowedFor: a.cfg.RememberVerdicts,
		Evaluate:   func(c packet.Class) (policy.Decision, bool) { return a.enforcer.EvaluateClass(c) },
		Flushed:    func() { a.queues[0].Flushed() },
		Alone:      a.place.Alone,
		Count:      func(c packet.Class, d policy.Decision, packets uint64) { a.enforcer.Remembered(c, d, packets) },
		Registerer: a.reg,
	})
}

// rememberMark is the mark of packets whose class the kernel remembers, 0 if it remembers
// none.
func (c Config) rememberMark() uint32 {
	if c.RememberVerdicts == 0 {
		return 0
	}
	return c.Marks.Lower
}

// rememberedVerdicts are the verdicts in the table of an agent.
type rememberedVerdicts struct{ agent *agent }

func (r rememberedVerdicts) Forget(ctx context.Context, allowed, denied []packet.Class) error {
	return r.agent.steering.steerer.ForgetVerdicts(ctx, allowed, denied)
}

func (r rememberedVerdicts) ForgetAll(ctx context.Context) error {
	return r.agent.steering.steerer.ForgetAllVerdicts(ctx)
}

func (r rememberedVerdicts) Deny(ctx context.Context, classes []packet.Class, d time.Duration) error {
	return r.agent.steering.steerer.DenyClasses(ctx, classes, d)
}

func (r rememberedVerdicts) All(ctx context.Context, yield func(verdictcache.Remembered)) error {
	return r.agent.steering.steerer.RememberedVerdicts(ctx, func(v steer.RememberedVerdict) { yield(verdictcache.Remembered(v)) })
}
