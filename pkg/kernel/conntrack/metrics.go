package conntrack

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	blocked     prometheus.Counter
	unblocked   prometheus.Counter
	offloaded   prometheus.Counter
	known       prometheus.Gauge
	runs        *prometheus.CounterVec
	lastSuccess prometheus.Gauge
}

// Tasks of netpol_conntrack_runs_total.
const (
	taskCheck = "check"
	taskPass  = "pass"
)

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
		known: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_classes",
			Help: "Known classes of established connections. At 262144 each change of the cluster leads to passes.",
		}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_conntrack_runs_total",
			Help: "Looks at established connections. check: of some addresses, because a change reverses a verdict there. pass: over the kernel's whole table.",
		}, []string{"task", "result"}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_conntrack_last_success_timestamp_seconds",
			Help: "When a pass over the table of connections last completed without an error.",
		}),
	}
	for _, task := range []string{taskCheck, taskPass} {
		m.runs.WithLabelValues(task, "success")
		m.runs.WithLabelValues(task, "error")
	}
	reg.MustRegister(m.blocked, m.unblocked, m.offloaded, m.known, m.runs, m.lastSuccess)
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

// ran returns the counter of runs of a task with the result err.
func (m *metrics) ran(task string, err error) prometheus.Counter {
	result := "success"
	if err != nil {
		result = "error"
	}
	return m.runs.WithLabelValues(task, result)
}

// countPass counts a pass.
func (m *metrics) countPass(err error) {
	m.ran(taskPass, err).Inc()
	if err == nil {
		m.lastSuccess.SetToCurrentTime()
	}
}

// newRemoved registers the counter of removed connections.
func newRemoved(reg prometheus.Registerer) prometheus.Counter {
	removed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_conntrack_removed_total",
		Help: "Connections removed because the pod at one of their addresses has changed.",
	})
	reg.MustRegister(removed)
	return removed
}
