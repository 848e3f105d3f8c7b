package agent

import (
	"sigs.k8s.io/kube-network-policies/pkg/agent/verdictcache"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func (a *agent) newVerdictCache() *verdictcache.Cache {
	return verdictcache.New(verdictcache.Config{
		Kernel:     a.remembered,
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
