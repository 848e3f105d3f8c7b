package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// metrics describe the active snapshot.
type metrics struct {
	current  atomic.Pointer[published] // nil before the first snapshot
	latency  prometheus.Histogram
	findings *prometheus.GaugeVec
	addrs    prometheus.Gauge

	// Used by publish only.
	logged  sets.Set[string] // findings of the last snapshot
	reasons map[string]int   // their number by reason
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_snapshot_latency_seconds",
			Help:    "Time from receiving a change of the cluster to deciding all packets by it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14), // to 8 s
		}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_findings",
			Help: "Parts of policies that are not enforced as written and fail closed, by reason.",
		}, []string{"reason"}),
		addrs: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_endpoints",
			Help: "Addresses of pods in the snapshot, of all nodes.",
		}),
		logged: sets.New[string](),
	}
	reg.MustRegister(m.latency, m.findings, m.addrs)
	return m
}

// exportReadiness exports what /readyz answers.
func exportReadiness(reg prometheus.Registerer, ready func() error) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_ready",
		Help: "1 while the agent is ready, else 0. /readyz has the reason.",
	}, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	}))
}

// published is a snapshot and since when it decides packets.
type published struct {
	snapshot *policy.Snapshot
	at       time.Time
}

func (m *metrics) hasSnapshot() bool { return m.current.Load() != nil }

// published updates the metrics and logs new findings. It is the last stage: the snapshot
// decides packets, and remembered verdicts that it reverses are gone.
func (m *metrics) published(ctx context.Context, c change) {
	m.latency.Observe(time.Since(c.since).Seconds())
	m.current.Store(&published{c.snapshot, time.Now()})
	m.addrs.Set(float64(c.snapshot.Len()))
	logger := klog.FromContext(ctx)
	now, reasons := sets.New[string](), map[string]int{}
	for _, f := range c.snapshot.Findings() {
		reasons[f.Reason]++
		line := f.String()
		now.Insert(line)
		if !m.logged.Has(line) {
			logger.Info("Policy is not enforced as written", "kind", f.Policy.Kind, "policy", f.Policy.String(), "field", f.Field.String(), "reason", f.Reason, "message", f.Message)
		}
	}
	for reason, n := range reasons {
		m.findings.WithLabelValues(reason).Set(float64(n))
	}
	for reason := range m.reasons {
		if reasons[reason] == 0 {
			m.findings.DeleteLabelValues(reason)
		}
	}
	m.logged, m.reasons = now, reasons
}
