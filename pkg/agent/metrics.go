package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
		version.NewCollector("kube_network_policies"),
	)
	return reg
}

// metrics tells of the snapshot that is in force.
type metrics struct {
	snapshot atomic.Bool
	latency  prometheus.Histogram
	findings *prometheus.GaugeVec
	addrs    prometheus.Gauge

	told sets.Set[string] // findings that were logged; of publish alone
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_snapshot_latency_seconds",
			Help:    "Time from seeing a change to judging packets by a snapshot that has it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14), // to 8 s
		}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_findings",
			Help: "Parts of policies that are not honoured as written and fail closed, by reason.",
		}, []string{"reason"}),
		addrs: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_endpoints",
			Help: "Addresses of pods in the snapshot, of all nodes.",
		}),
		told: sets.New[string](),
	}
	reg.MustRegister(m.latency, m.findings, m.addrs)
	return m
}

func (m *metrics) hasSnapshot() bool { return m.snapshot.Load() }

// inForce is told that packets are judged by a snapshot whose oldest change was
// seen at since.
func (m *metrics) inForce(since time.Time) { m.latency.Observe(time.Since(since).Seconds()) }

// published describes s, and logs each finding when it is new.
func (m *metrics) published(ctx context.Context, s *policy.Snapshot) {
	m.snapshot.Store(true)
	m.addrs.Set(float64(s.Len()))
	logger := klog.FromContext(ctx)
	m.findings.Reset()
	now := sets.New[string]()
	for _, f := range s.Findings() {
		m.findings.WithLabelValues(f.Reason).Inc()
		line := f.String()
		now.Insert(line)
		if !m.told.Has(line) {
			logger.Info("Policy is not honoured as written", "kind", f.Policy.Kind, "policy", f.Policy.String(), "field", f.Field, "reason", f.Reason, "message", f.Message)
		}
	}
	m.told = now
}
