package gate

import "github.com/prometheus/client_golang/prometheus"

// The results of a write.
const (
	resultSuccess  = "success"
	resultGone     = "gone"
	resultError    = "error"
	resultConflict = "conflict"
)

type metrics struct {
	writes *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_pod_readiness_writes_total",
			Help: "Conditions written for the readiness gate of pods. gone: the pod was deleted meanwhile.",
		}, []string{"result"}),
	}
	for _, result := range []string{resultSuccess, resultGone, resultError} {
		m.writes.WithLabelValues(result)
	}
	reg.MustRegister(m.writes)
	return m
}
