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
			Help: "Classes of established connections that are known.",
		}),
		checks: newRuns(reg,
			"netpol_conntrack_checks_total", "Checks of the connections of an address because a change of the cluster concerns them, by result.",
			"netpol_conntrack_check_duration_seconds", "Time of a check."),
		passes: newRuns(reg,
			"netpol_conntrack_passes_total", "Passes over the kernel's table of connections, by result.",
			"netpol_conntrack_pass_duration_seconds", "Time of a pass over the kernel's table of connections."),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_last_success_timestamp_seconds",
			Help: "When a pass last completed without an error.",
		}),
	}
	reg.MustRegister(m.blocked, m.unblocked, m.offloaded, m.entries, m.known, m.lastSuccess)
	return m
}

// changed counts a change.
func (m *metrics) changed(ch change) {
	if !ch.block {
		m.unblocked.Inc()
		return
	}
	m.blocked.Inc()
	if ch.offloaded != nil {
		m.offloaded.Inc()
	}
}

// passed counts a pass.
func (m *metrics) passed(took time.Duration, err error) {
	m.passes.ran(took, err)
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
			Help: "Connections removed from the kernel's table because the pod at one of their addresses has changed.",
		}),
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_conntrack_removal_read_total",
			Help: "Connections that the kernel listed to find those to remove.",
		}),
		runs: newRuns(reg,
			"netpol_conntrack_removals_total", "Removals of the connections of one or more addresses, by result.",
			"netpol_conntrack_removal_duration_seconds", "Time of a removal."),
	}
	reg.MustRegister(m.removed, m.read)
	return m
}

// runs counts what is done again and again, by its result, and the time that it takes.
type runs struct {
	results  *prometheus.CounterVec
	duration prometheus.Histogram
}

func newRuns(reg prometheus.Registerer, total, totalHelp, duration, durationHelp string) runs {
	r := runs{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: total, Help: totalHelp}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: duration, Help: durationHelp,
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), // 1 ms to 16 s
		}),
	}
	for _, result := range []string{"success", "error"} {
		r.results.WithLabelValues(result)
	}
	reg.MustRegister(r.results, r.duration)
	return r
}

// ran counts a run.
func (r *runs) ran(took time.Duration, err error) {
	r.duration.Observe(took.Seconds())
	result := "success"
	if err != nil {
		result = "error"
	}
	r.results.WithLabelValues(result).Inc()
}
