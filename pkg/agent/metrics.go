package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// metrics describe the active snapshot.
type metrics struct {
	snapshot atomic.Bool
	latency  prometheus.Histogram
	findings *prometheus.GaugeVec
	addrs    prometheus.Gauge
	linkless prometheus.Gauge

	// Used by publish alone.
	logged  sets.Set[string] // findings of the last snapshot
	reasons map[string]int   // how many of each reason they are
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_snapshot_latency_seconds",
			Help:    "Time from receiving a change of the cluster to deciding all packets by a snapshot with it.",
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
		linkless: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_pods_without_interface",
			Help: "Pods of this node that an administrator's policy may deny something at the node, and to which no interface with a check of sources is known to lead: what they send to the node from addresses that are not theirs, such as link-local ones, is not evaluated.",
		}),
		logged: sets.New[string](),
	}
	reg.MustRegister(m.latency, m.findings, m.addrs, m.linkless)
	return m
}

// countRestarts exports how often the agent was started again. All other metrics of the
// process begin again.
func countRestarts(reg prometheus.Registerer, restarts int) {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_agent_restarts_total",
		Help: "Times the agent was started again in its container after a crash, with --max-crashes.",
	})
	c.Add(float64(restarts))
	reg.MustRegister(c)
}

// exportReadiness exports what /readyz answers.
func exportReadiness(reg prometheus.Registerer, ready func() error) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_ready",
		Help: "Whether the agent is ready (1) or not (0), as /readyz reports.",
	}, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	}))
}

func (m *metrics) hasSnapshot() bool { return m.snapshot.Load() }

// enforced is called when packets are decided by a snapshot, and none by remembered
// verdicts that it turns. Its oldest change was observed at since.
func (m *metrics) enforced(since time.Time) { m.latency.Observe(time.Since(since).Seconds()) }

// published updates the metrics to s and logs new findings.
func (m *metrics) published(ctx context.Context, s *policy.Snapshot) {
	m.snapshot.Store(true)
	m.addrs.Set(float64(s.Len()))
	logger := klog.FromContext(ctx)
	now, reasons := sets.New[string](), map[string]int{}
	for _, f := range s.Findings() {
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
