package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// evaluationShare is the part of one core that deferred evaluations may take: one
// in so many.
const evaluationShare = 4

// evaluator makes the evaluations that are too much work for the path of a packet.
type evaluator struct {
	memory *policy.Memory
	made   prometheus.Counter
}

func newEvaluator(budget int64, reg prometheus.Registerer) *evaluator {
	e := &evaluator{
		memory: policy.NewMemory(budget),
		made: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_evaluations_deferred_total",
			Help: "Evaluations of a peer by many selectors, made while its packets were held.",
		}),
	}
	reg.MustRegister(e.made,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "netpol_evaluation_memory_bytes",
			Help: "Memory of remembered evaluations, at most --evaluation-memory.",
		}, func() float64 { return float64(e.memory.Used()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "netpol_evaluation_evictions_total",
			Help: "Evaluations forgotten to stay within --evaluation-memory.",
		}, func() float64 { return float64(e.memory.Evicted()) }),
	)
	return e
}

// Run makes deferred evaluations until ctx ends, one at a time, and rests after
// each so that together they take their share of a core.
func (e *evaluator) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case evaluation := <-e.memory.Deferred():
			started := time.Now()
			evaluation.Run()
			e.made.Inc()
			if !sleep(ctx, (evaluationShare-1)*time.Since(started)) {
				return nil
			}
		}
	}
}

// sleep reports whether ctx is still alive after d.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
