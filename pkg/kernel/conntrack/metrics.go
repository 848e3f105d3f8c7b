package conntrack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	blocked     prometheus.Counter
	unblocked   prometheus.Counter
	offloaded   prometheus.Counter
	entries     prometheus.Gauge
	known       prometheus.Gauge
	overridden  prometheus.Gauge
	checks      runs
	passes      runs
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
		offloaded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_offloaded_total",
			Help: "Blocked connections that a flowtable forwarded past all rules until then.",
		}),
		entries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_connections",
			Help: "Connections in the kernel's table at the last pass.",
		}),
		known: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_classes",
			Help: "Known classes of established connections. At 262144 each change of the cluster leads to passes.",
		}),
		overridden: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_overridden_classes",
			Help: "Denied classes of established connections that nftables drops until their connections are marked.",
		}),
		checks: newRuns(reg,
			prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "netpol_conntrack_checks_total",
				Help: "Checks of the connections of some addresses, because a change reverses a verdict there.",
			}, byResult),
			prometheus.NewHistogram(prometheus.HistogramOpts{
				Name:    "netpol_conntrack_check_duration_seconds",
				Help:    "Time of a check of the connections of some addresses.",
				Buckets: runBuckets,
			})),
		passes: newRuns(reg,
			prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "netpol_conntrack_passes_total",
				Help: "Passes over the kernel's table of connections.",
			}, byResult),
			prometheus.NewHistogram(prometheus.HistogramOpts{
				Name:    "netpol_conntrack_pass_duration_seconds",
				Help:    "Time of a pass over the kernel's table of connections.",
				Buckets: runBuckets,
			})),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_last_success_timestamp_seconds",
			Help: "When a pass over the table of connections last completed without an error.",
		}),
	}
	reg.MustRegister(m.blocked, m.unblocked, m.offloaded, m.entries, m.known, m.overridden, m.lastSuccess)
	return m
}

// countChange counts a change.
func (m *metrics) countChange(ch change) {
	if !ch.block {
		m.unblocked.Inc()
		return
	}
	m.blocked.Inc()
	if ch.offloaded != nil {
		m.offloaded.Inc()
	}
}

// countPass counts a pass.
func (m *metrics) countPass(took time.Duration, err error) {
	m.passes.observe(took, err)
	if err == nil {
		m.lastSuccess.SetToCurrentTime()
	}
}

type removerMetrics struct {
	removed prometheus.Counter
	read    prometheus.Counter
	runs
}

func newRemoverMetrics(reg prometheus.Registerer) *removerMetrics {
	m := &removerMetrics{
		removed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_removed_total",
			Help: "Connections removed because the pod at one of their addresses has changed.",
		}),
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_removal_read_total",
			Help: "Connections that the kernel listed to find those to remove.",
		}),
		runs: newRuns(reg,
			prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "netpol_conntrack_removals_total",
				Help: "Removals of the connections of one or more addresses.",
			}, byResult),
			prometheus.NewHistogram(prometheus.HistogramOpts{
				Name:    "netpol_conntrack_removal_duration_seconds",
				Help:    "Time of a removal of connections.",
				Buckets: runBuckets,
			})),
	}
	reg.MustRegister(m.removed, m.read)
	return m
}

// runs counts the runs of a task by result, and observes their durations.
type runs struct {
	results  *prometheus.CounterVec
	duration prometheus.Histogram
}

var (
	byResult   = []string{"result"}
	runBuckets = prometheus.ExponentialBuckets(0.001, 4, 8) // 1 ms to 16 s
)

func newRuns(reg prometheus.Registerer, results *prometheus.CounterVec, duration prometheus.Histogram) runs {
	r := runs{results: results, duration: duration}
	for _, result := range []string{"success", "error"} {
		r.results.WithLabelValues(result)
	}
	reg.MustRegister(r.results, r.duration)
	return r
}

// observe counts a run.
func (r *runs) observe(took time.Duration, err error) {
	r.duration.Observe(took.Seconds())
	result := "success"
	if err != nil {
		result = "error"
	}
	r.results.WithLabelValues(result).Inc()
}
