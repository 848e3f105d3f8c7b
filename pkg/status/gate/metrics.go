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
	writes  *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, waiting func() int) *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_pod_readiness_writes_total",
			Help: "Conditions written for the readiness gate of pods. gone: the pod was deleted meanwhile.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_pod_readiness_seconds",
			Help:    "Time from when a pod with the readiness gate has addresses until its condition is true.",
			Buckets: []float64{.5, 1, 2, 5, 10, 20, 30, 60, 120, 300},
		}),
	}
	for _, result := range []string{resultSuccess, resultGone, resultError} {
		m.writes.WithLabelValues(result)
	}
	reg.MustRegister(m.writes, m.seconds, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_pod_readiness_waiting_pods",
		Help: "Pods that have addresses and wait for the condition of their readiness gate.",
	}, func() float64 { return float64(waiting()) }))
	return m
}
