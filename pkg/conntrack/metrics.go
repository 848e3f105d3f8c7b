package conntrack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	blocked     prometheus.Counter
	unblocked   prometheus.Counter
	entries     prometheus.Gauge
	passes      *prometheus.CounterVec
	duration    prometheus.Histogram
	lastSuccess prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		blocked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_blocked_total",
			Help: "Established connections that were blocked.",
		}),
		unblocked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_unblocked_total",
			Help: "Blocked connections that were unblocked.",
		}),
		entries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_connections",
			Help: "Connections in the kernel's table at the last pass.",
		}),
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_conntrack_passes_total",
			Help: "Passes over the kernel's table of connections, by result.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_conntrack_pass_duration_seconds",
			Help:    "Time of a pass over the kernel's table of connections.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), // 1 ms to 16 s
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_last_success_timestamp_seconds",
			Help: "When a pass last completed without an error.",
		}),
	}
	for _, result := range []string{"success", "error"} {
		m.passes.WithLabelValues(result)
	}
	reg.MustRegister(m.blocked, m.unblocked, m.entries, m.passes, m.duration, m.lastSuccess)
	return m
}

// passed counts a pass.
func (m *metrics) passed(took time.Duration, err error) {
	m.duration.Observe(took.Seconds())
	if err != nil {
		m.passes.WithLabelValues("error").Inc()
		return
	}
	m.passes.WithLabelValues("success").Inc()
	m.lastSuccess.SetToCurrentTime()
}

type removerMetrics struct {
	removed  prometheus.Counter
	read     prometheus.Counter
	runs     *prometheus.CounterVec
	duration prometheus.Histogram
}

func newRemoverMetrics(reg prometheus.Registerer) *removerMetrics {
	m := &removerMetrics{
		removed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_removed_total",
			Help: "Connections removed from the kernel's table because the pod at one of their addresses has changed.",
		}),
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_removal_read_total",
			Help: "Connections that the kernel listed to find those to remove.",
		}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_conntrack_removals_total",
			Help: "Removals of the connections of one or more addresses, by result.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_conntrack_removal_duration_seconds",
			Help:    "Time of a removal.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), // 1 ms to 16 s
		}),
	}
	for _, result := range []string{"success", "error"} {
		m.runs.WithLabelValues(result)
	}
	reg.MustRegister(m.removed, m.read, m.runs, m.duration)
	return m
}

// ran counts a removal.
func (m *removerMetrics) ran(took time.Duration, err error) {
	m.duration.Observe(took.Seconds())
	result := "success"
	if err != nil {
		result = "error"
	}
	m.runs.WithLabelValues(result).Inc()
}
