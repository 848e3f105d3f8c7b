package domains

import "github.com/prometheus/client_golang/prometheus"

// result is what became of an answer.
type result string

const (
	learned     result = "learned"
	empty       result = "empty"       // the name has no address of that kind
	negative    result = "negative"    // the resolver says that the name does not exist, or that it failed
	truncated   result = "truncated"   // the pod is to ask again by TCP
	unsolicited result = "unsolicited" // the pod did not ask that, or no longer waits
	malformed   result = "malformed"
	other       result = "other" // not about addresses
)

var results = []result{learned, empty, negative, truncated, unsolicited, malformed, other}

type metrics struct {
	queries    prometheus.Counter
	answers    *prometheus.CounterVec
	unreadable prometheus.Counter
	evictions  *prometheus.CounterVec
}

// newMetrics registers the metrics. addresses is asked when they are scraped.
func newMetrics(reg prometheus.Registerer, addresses func() int) *metrics {
	m := &metrics{
		queries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_dns_queries_total",
			Help: "Queries for addresses by pods whose policies name domains.",
		}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_dns_answers_total",
			Help: "DNS answers to pods whose policies name domains, by what became of them.",
		}, []string{"result"}),
		unreadable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_dns_unreadable_packets_total",
			Help: "Packets of DNS traffic that are no whole UDP datagram or TCP segment. Nothing is learned from them.",
		}),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_dns_evictions_total",
			Help: "What was forgotten before its time because a pod had too much of it: addresses, queries, TCP streams.",
		}, []string{"kind"}),
	}
	for _, r := range results {
		m.answers.WithLabelValues(string(r))
	}
	for _, kind := range []string{"address", "query", "stream"} {
		m.evicted(kind)
	}
	reg.MustRegister(m.queries, m.answers, m.unreadable, m.evictions, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_dns_addresses",
		Help: "Addresses learned, each counted once for each name and each pod that knows it by the name.",
	}, func() float64 { return float64(addresses()) }))
	return m
}

func (m *metrics) answered(r result) { m.answers.WithLabelValues(string(r)).Inc() }

func (m *metrics) evicted(kind string) prometheus.Counter { return m.evictions.WithLabelValues(kind) }
