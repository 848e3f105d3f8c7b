package gate

import "github.com/prometheus/client_golang/prometheus"

// The results of a write.
const (
	resultSuccess  = "success"
	resultGone     = "gone"
	resultError    = "error"
	resultConflict = "conflict"
)

// newWrites registers the counter of writes to objects of a kind, by result.
func newWrites(reg prometheus.Registerer, kind string, results ...string) *prometheus.CounterVec {
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "netpol_readiness_writes_total",
		Help:        "Conditions written for the readiness gate of pods, and removals of the startup taint. gone, conflict: deleted or changed meanwhile.",
		ConstLabels: prometheus.Labels{"kind": kind},
	}, []string{"result"})
	for _, result := range results {
		writes.WithLabelValues(result)
	}
	reg.MustRegister(writes)
	return writes
}
