package flows

import "github.com/prometheus/client_golang/prometheus"

// register exports the decisions by rule, and how many were not recorded.
func (r *Recorder) register(reg prometheus.Registerer) {
	reg.MustRegister(ruleMetrics{r}, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "netpol_flow_decisions_lost_total",
		Help: "Decisions that came too fast to be recorded. Verdicts are not affected.",
	}, func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return float64(r.lost())
	}))
}
