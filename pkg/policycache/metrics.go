package policycache

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

type metrics struct {
	compileDuration   prometheus.Histogram
	snapshotTimestamp prometheus.Gauge
	objects           *prometheus.GaugeVec
	watchErrors       *prometheus.CounterVec
	changes, ignored  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	byKind := []string{"kind"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, byKind)
	}
	m := &metrics{
		compileDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_compile_duration_seconds",
			Help:    "Time to read the cached objects and compile a snapshot of them.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15), // to 8 s
		}),
		snapshotTimestamp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_snapshot_timestamp_seconds",
			Help: "Unix time at which the objects of the last snapshot were read.",
		}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_objects",
			Help: "Objects in the last snapshot, by kind.",
		}, byKind),
		watchErrors: counter("netpol_watch_errors_total", "Lists and watches that failed, by kind."),
		changes:     counter("netpol_changes_total", "Changes of objects that policy depends on, by kind."),
		ignored:     counter("netpol_changes_ignored_total", "Changes of objects that concern no policy, by kind."),
	}
	reg.MustRegister(m.compileDuration, m.snapshotTimestamp, m.objects, m.watchErrors, m.changes, m.ignored)
	for _, kind := range kinds {
		m.objects.WithLabelValues(kind)
		m.watchErrors.WithLabelValues(kind)
		m.changes.WithLabelValues(kind)
		m.ignored.WithLabelValues(kind)
	}
	return m
}

// compiled notes a compile of in that began at start.
func (m *metrics) compiled(in compile.Input, start time.Time, took time.Duration) {
	m.compileDuration.Observe(took.Seconds())
	m.snapshotTimestamp.Set(float64(start.UnixNano()) / 1e9)
	m.objects.WithLabelValues(kindNamespace).Set(float64(len(in.Namespaces)))
	m.objects.WithLabelValues(kindNetworkPolicy).Set(float64(len(in.NetworkPolicies)))
	m.objects.WithLabelValues(kindNode).Set(float64(len(in.Nodes)))
	m.objects.WithLabelValues(kindPod).Set(float64(len(in.Pods)))
}
