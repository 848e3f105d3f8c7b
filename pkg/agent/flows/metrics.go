package flows

import "github.com/prometheus/client_golang/prometheus"

// register exports the numbers of recorded, evicted and lost decisions.
func (r *Recorder) register(reg prometheus.Registerer) {
	locked := func(read func() uint64) func() float64 {
		return func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return float64(read())
		}
	}
	reg.MustRegister(
		ruleMetrics{r},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "netpol_flow_records",
			Help: "Flows that are recorded, at most 4096.",
		}, locked(func() uint64 { return uint64(len(r.table.flows)) })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "netpol_flow_records_evicted_total",
			Help: "Recorded flows that made room for others, the least recently seen first.",
		}, locked(func() uint64 { return r.table.evicted })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "netpol_flow_decisions_lost_total",
			Help: "Decisions that came too fast to be recorded. Verdicts are not affected.",
		}, locked(r.lost)),
	)
}
