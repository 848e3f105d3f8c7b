package status

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type metrics struct {
	writes     *prometheus.CounterVec
	conditions *prometheus.GaugeVec
	usable     *prometheus.GaugeVec
	leader     prometheus.Gauge

	mu      sync.Mutex
	current map[item][]prometheus.Labels // the true conditions of each object
	pending map[item]time.Time           // since when conditions of an object may need a write
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_status_writes_total",
			Help: "Requests that store or remove conditions. conflict, gone: changed or deleted meanwhile. unserved: no such sink. refused: by admission. invalid: the stored policy is no longer valid. server_error: 5xx. error: no answer.",
		}, []string{"kind", "sink", "result"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_status_conditions",
			Help: "Policies for which a condition is true, as the leader knows them.",
		}, []string{"kind", "type", "reason"}),
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_status_sink_usable",
			Help: "1 if the last probe or write found the sink usable, else 0. No sample: not tried, or the kind is not served.",
		}, []string{"kind", "sink"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_status_leader",
			Help: "1 while this writer holds the lease and writes, else 0.",
		}),
		current: map[item][]prometheus.Labels{},
		pending: map[item]time.Time{},
	}
	reg.MustRegister(m.writes, m.conditions, m.usable, m.leader,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "netpol_status_oldest_unwritten_seconds",
			Help: "Longest time that a policy has been waiting for its conditions to be stored.",
		}, m.oldest))
	return m
}

// initialize creates the counters of kinds with value 0.
func (m *metrics) initialize(kinds []Kind) {
	for _, r := range results {
		for _, k := range kinds {
			for _, s := range k.Sinks {
				m.writes.WithLabelValues(k.Name, s.Name(), string(r))
			}
		}
	}
}

// markPending records that the conditions of i may need a write. It keeps an earlier time.
func (m *metrics) markPending(i item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.pending[i]; !ok {
		m.pending[i] = time.Now()
	}
}

// markDone records that i needs no write.
func (m *metrics) markDone(i item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pending, i)
}

func (m *metrics) oldest() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	oldest := now
	for _, since := range m.pending {
		if since.Before(oldest) {
			oldest = since
		}
	}
	return now.Sub(oldest).Seconds()
}

// setConditions counts the conditions of i instead of its earlier ones.
func (m *metrics) setConditions(i item, kind string, conditions []metav1.Condition) {
	var labels []prometheus.Labels
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue {
			labels = append(labels, prometheus.Labels{"kind": kind, "type": c.Type, "reason": c.Reason})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range labels {
		m.conditions.With(l).Inc()
	}
	for _, l := range m.current[i] {
		m.conditions.With(l).Dec()
	}
	m.current[i] = labels
	if len(labels) == 0 {
		delete(m.current, i)
	}
}

// forget drops an object that was deleted.
func (m *metrics) forget(i item) {
	m.setConditions(i, "", nil)
	m.markDone(i)
}

// forgetKind drops all objects of a kind.
func (m *metrics) forgetKind(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ofKind := func(i item) bool { return i.kind == kind }
	maps.DeleteFunc(m.current, func(i item, _ []prometheus.Labels) bool { return ofKind(i) })
	maps.DeleteFunc(m.pending, func(i item, _ time.Time) bool { return ofKind(i) })
	m.conditions.DeletePartialMatch(prometheus.Labels{"kind": kind})
	m.usable.DeletePartialMatch(prometheus.Labels{"kind": kind})
}

// setLeader starts or ends a period of leadership. Only the leader keeps the
// metrics of objects up to date.
func (m *metrics) setLeader(leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leader.Set(0)
	if leads {
		m.leader.Set(1)
	}
	clear(m.current)
	clear(m.pending)
	m.conditions.Reset()
	m.usable.Reset()
}
