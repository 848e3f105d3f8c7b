package conntrack

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	blocked     *prometheus.CounterVec
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
		blocked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_conntrack_blocked_total",
			Help: "Established connections that were blocked. offloaded: a flowtable forwarded them past all rules until then.",
		}, []string{"offloaded"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_conntrack_runs_total",
			Help: "Looks at established connections. check: of some addresses after a change. pass: over the kernel's whole table.",
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
	for _, offloaded := range []bool{false, true} {
		m.blocks(offloaded)
	}
	reg.MustRegister(m.blocked, m.runs, m.lastSuccess)
	return m
}

// blocks returns the counter of blocked connections that a flowtable forwarded, or of the rest.
func (m *metrics) blocks(offloaded bool) prometheus.Counter {
	return m.blocked.WithLabelValues(strconv.FormatBool(offloaded))
}

// countChange counts a change.
func (m *metrics) countChange(ch change) {
	if ch.block {
		m.blocks(ch.offloaded != nil).Inc()
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
