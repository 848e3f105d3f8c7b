package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// evaluationPause is how many times as long as an evaluation took the next one waits: deferred
// evaluations take at most a quarter of a core.
const evaluationPause = 3

// maxDeferred bounds the evaluations that wait.
const maxDeferred = 1024

// evaluator runs the evaluations that are too expensive for the packet path.
type evaluator struct {
	deferred  chan *policy.Evaluation
	completed prometheus.Counter
}

func newEvaluator(reg prometheus.Registerer) *evaluator {
	e := &evaluator{
		deferred: make(chan *policy.Evaluation, maxDeferred),
		completed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_evaluations_deferred_total",
			Help: "Evaluations of a peer by many selectors, during which its first packets were pending.",
		}),
	}
	reg.MustRegister(e.completed)
	return e
}

// Run runs deferred evaluations until ctx ends, one at a time, and sleeps after each to
// stay below a quarter of a core.
func (e *evaluator) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case evaluation := <-e.deferred:
			started := time.Now()
			evaluation.Run()
			e.completed.Inc()
			if !sleep(ctx, evaluationPause*time.Since(started)) {
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
