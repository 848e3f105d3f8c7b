package clusterwatch

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

type metrics struct {
	source      *prometheus.GaugeVec
	served      *prometheus.GaugeVec
	watchErrors *prometheus.CounterVec
	conflicts   *prometheus.GaugeVec
}

// newMetrics registers the metrics of these kinds. On collection, count returns the number of
// objects of a kind, and age the age of the state in seconds.
func newMetrics(reg prometheus.Registerer, kinds []*compile.Kind, count func(*compile.Kind) int, age func() float64) *metrics {
	byKind := []string{"kind"}
	m := &metrics{
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
	}
	m.conflicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "netpol_address_conflicts",
		Help: "Addresses that a status claims and that are another's, or may be: of a pod of this node (local_pod), of another one (other_pod; pod_range: in its node's range), in this node's range (own_range), or a Node's.",
	}, byKind)
	reg.MustRegister(m.source, m.served, m.watchErrors, m.conflicts)
	m.setConflicts(nil)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_snapshot_age_seconds",
		Help: "Time since all kinds of objects were last watched: 0 while they are, +Inf if they never were.",
	}, age))
	for _, kind := range kinds {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "netpol_objects",
			Help:        "Objects that are known, by kind.",
			ConstLabels: prometheus.Labels{"kind": kind.Name},
		}, func() float64 { return float64(count(kind)) }))
		m.watchErrors.WithLabelValues(kind.Name)
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
