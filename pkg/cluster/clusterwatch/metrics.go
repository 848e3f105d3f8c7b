package clusterwatch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
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

// newMetrics registers the metrics of these kinds. On collection, count returns the number of
// objects of a kind, and age the age of the state in seconds.
func newMetrics(reg prometheus.Registerer, kinds []*compile.Kind, count func(*compile.Kind) int, age func() float64) *metrics {
	byKind := []string{"kind"}
	m := &metrics{
		compileDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_compile_duration_seconds",
			Help:    "Time to compile what has changed and to make a snapshot.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 11), // to 10 s
		}),
		snapshotTimestamp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_snapshot_timestamp_seconds",
			Help: "Unix time of the last snapshot. A cluster that does not change has an old one.",
		}),
		source: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_snapshot_source",
			Help: "1 for where the objects in force come from: cache (the saved state) or cluster.",
		}, []string{"source"}),
		served: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_kind_served",
			Help: "1 while an enabled kind is served, 0 while its CustomResourceDefinition is not installed.",
		}, byKind),
		watchErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_watch_errors_total",
			Help: "Lists and watches that failed or were older than what is known. They are retried.",
		}, byKind),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_changes_total",
			Help: "Changes of objects that policies depend on.",
		}, byKind),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_changes_ignored_total",
			Help: "Changes of objects that concern no policy.",
		}, byKind),
	}
	m.conflicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_address_conflicts",
		Help: "Addresses that a status claims and that are another's, or may be. A pod claims that of another pod (local_pod, other_pod, pod_range: a pod in its node's range), one in this node's range (own_range), or that of a Node; a Node claims that of a pod of this node, or one in the range of another.",
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

// setSource exports where the objects of the next snapshots come from.
func (m *metrics) setSource(source string) {
	m.source.Reset()
	m.source.WithLabelValues(source).Set(1)
}

// compiled observes a compile that began at start.
func (m *metrics) compiled(start time.Time, duration time.Duration) {
	m.compileDuration.Observe(duration.Seconds())
	m.snapshotTimestamp.Set(float64(start.UnixNano()) / 1e9)
}
