package policycache

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

type metrics struct {
	compileDuration   prometheus.Histogram
	snapshotTimestamp prometheus.Gauge
	source            *prometheus.GaugeVec
	served            *prometheus.GaugeVec
	watchErrors       *prometheus.CounterVec
	changes, ignored  *prometheus.CounterVec
	conflicts         *prometheus.GaugeVec
}

// newMetrics registers the metrics of these kinds. When the metrics are collected, count
// returns the number of objects of a kind, and age the age of what is known in seconds.
func newMetrics(reg prometheus.Registerer, kinds []*compile.Kind, count func(*compile.Kind) int, age func() float64) *metrics {
	byKind := []string{"kind"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, byKind)
	}
	m := &metrics{
		compileDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_compile_duration_seconds",
			Help:    "Time to compile what has changed and to make a snapshot.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 11), // to 10 s
		}),
		snapshotTimestamp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_snapshot_timestamp_seconds",
			Help: "Unix time of the last snapshot.",
		}),
		source: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_snapshot_source",
			Help: "1 for where the objects in the snapshot come from: cache, which was written before the start, or cluster.",
		}, []string{"source"}),
		served: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_kind_served",
			Help: "1 while an enabled kind of policies is served, 0 while its CustomResourceDefinition is not installed.",
		}, byKind),
		watchErrors: counter("netpol_watch_errors_total", "Lists and watches that failed or ended with an error, and lists older than what is known, by kind."),
		changes:     counter("netpol_changes_total", "Changes of objects that policy depends on, by kind."),
		ignored:     counter("netpol_changes_ignored_total", "Changes of objects that concern no policy, by kind."),
	}
	m.conflicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_address_conflicts",
		Help: "Addresses that the status of a pod or node claims and that are another's, by what they are.",
	}, byKind)
	reg.MustRegister(m.compileDuration, m.snapshotTimestamp, m.source, m.served, m.watchErrors, m.changes, m.ignored, m.conflicts)
	m.setConflicts(nil)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_snapshot_age_seconds",
		Help: "Time since all kinds of objects were last being watched: 0 while they are, +Inf if they never were.",
	}, age))
	for _, kind := range kinds {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "netpol_objects",
			Help:        "Objects that are known, by kind.",
			ConstLabels: prometheus.Labels{"kind": kind.Name},
		}, func() float64 { return float64(count(kind)) }))
		m.watchErrors.WithLabelValues(kind.Name)
		m.changes.WithLabelValues(kind.Name)
		m.ignored.WithLabelValues(kind.Name)
	}
	return m
}

// setConflicts counts conflicts about addresses.
func (m *metrics) setConflicts(now []clusterstate.Conflict) {
	counts := map[clusterstate.ConflictKind]int{}
	for _, conflict := range now {
		counts[conflict.Kind]++
	}
	for _, kind := range clusterstate.ConflictKinds {
		m.conflicts.WithLabelValues(string(kind)).Set(float64(counts[kind]))
	}
}

// The values of netpol_snapshot_source.
const (
	fromCache  = "cache"
	fromSource = "cluster"
)

// setSource notes where the objects of the next snapshots come from.
func (m *metrics) setSource(source string) {
	m.source.Reset()
	m.source.WithLabelValues(source).Set(1)
}

// compiled notes a snapshot that began at start.
func (m *metrics) compiled(start time.Time, took time.Duration) {
	m.compileDuration.Observe(took.Seconds())
	m.snapshotTimestamp.Set(float64(start.UnixNano()) / 1e9)
}
