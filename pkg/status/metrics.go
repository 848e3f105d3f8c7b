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
	events     *prometheus.CounterVec
	conditions *prometheus.GaugeVec
	usable     *prometheus.GaugeVec
	leader     prometheus.Gauge

	mu      sync.Mutex
	holds   map[item][]prometheus.Labels // the true conditions of each object
	pending map[item]time.Time           // since when an object may be unwritten
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_status_writes_total",
			Help: "Requests that store or remove conditions, by kind of policy, sink and result.",
		}, []string{"kind", "sink", "result"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_status_events_total",
			Help: "Events about policies sent, by result.",
		}, []string{"result"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_status_conditions",
			Help: "Policies for which a condition is true, by kind of policy, type and reason.",
		}, []string{"kind", "type", "reason"}),
		usable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_status_sink_usable",
			Help: "Whether conditions can be stored in that way, by kind of policy and sink, as last found.",
		}, []string{"kind", "sink"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_status_leader",
			Help: "1 while this writer leads and writes.",
		}),
		holds:   map[item][]prometheus.Labels{},
		pending: map[item]time.Time{},
	}
	reg.MustRegister(m.writes, m.events, m.conditions, m.usable, m.leader,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "netpol_status_oldest_unwritten_seconds",
			Help: "How long the longest waiting policy has waited for its conditions to be stored, 0 if none waits.",
		}, m.oldest))
	return m
}

// declare makes the counters of kinds exist at 0.
func (m *metrics) declare(kinds []Kind) {
	for _, r := range results {
		m.events.WithLabelValues(string(r))
		for _, k := range kinds {
			for _, s := range k.Sinks {
				m.writes.WithLabelValues(k.Name, s.Name(), string(r))
			}
		}
	}
}

// waits notes that i may have to be written, from now on if it is new.
func (m *metrics) waits(i item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.pending[i]; !ok {
		m.pending[i] = time.Now()
	}
}

// written notes that nothing of i is to be written.
func (m *metrics) written(i item) {
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

// describe counts the conditions of i instead of those it had before.
func (m *metrics) describe(i item, kind string, conditions []metav1.Condition) {
	var holds []prometheus.Labels
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue {
			holds = append(holds, prometheus.Labels{"kind": kind, "type": c.Type, "reason": c.Reason})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, labels := range holds {
		m.conditions.With(labels).Inc()
	}
	for _, labels := range m.holds[i] {
		m.conditions.With(labels).Dec()
	}
	m.holds[i] = holds
	if len(holds) == 0 {
		delete(m.holds, i)
	}
}

// forget drops an object that is no more.
func (m *metrics) forget(i item) {
	m.describe(i, "", nil)
	m.written(i)
}

// forgetKind drops all that is known of a kind.
func (m *metrics) forgetKind(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ofKind := func(i item) bool { return i.kind == kind }
	maps.DeleteFunc(m.holds, func(i item, _ []prometheus.Labels) bool { return ofKind(i) })
	maps.DeleteFunc(m.pending, func(i item, _ time.Time) bool { return ofKind(i) })
	m.conditions.DeletePartialMatch(prometheus.Labels{"kind": kind})
	m.usable.DeletePartialMatch(prometheus.Labels{"kind": kind})
}

// lead starts or ends a time of leadership. What is known of the objects is only
// kept up to date by the leader.
func (m *metrics) lead(leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leader.Set(0)
	if leads {
		m.leader.Set(1)
	}
	clear(m.holds)
	clear(m.pending)
	m.conditions.Reset()
	m.usable.Reset()
}
