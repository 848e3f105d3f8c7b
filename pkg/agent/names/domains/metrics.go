package domains

import "github.com/prometheus/client_golang/prometheus"

// result is the outcome of an answer.
type result string

const (
	learned     result = "learned"
	empty       result = "empty"       // the name has no address of that type
	negative    result = "negative"    // NXDOMAIN, SERVFAIL or another error code
	truncated   result = "truncated"   // the pod repeats the query by TCP
	unsolicited result = "unsolicited" // there is no such query, or it has expired
	malformed   result = "malformed"
	other       result = "other"      // not about addresses
	unreadable  result = "unreadable" // no complete segment, of an answer or a query
)

var results = []result{learned, empty, negative, truncated, unsolicited, malformed, other, unreadable}

type metrics struct {
	queries   prometheus.Counter
	messages  *prometheus.CounterVec
	evictions *prometheus.CounterVec
}

// newMetrics registers the metrics. addresses is called when they are scraped.
func newMetrics(reg prometheus.Registerer, addresses func() int) *metrics {
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_dns_messages_total",
		Help: "DNS messages of pods whose policies have domain names. query: for addresses; the others are answers. empty: no address of that type. negative: no such name, or a failure. truncated: the pod repeats the query over TCP. unsolicited: without a recent query. other: not about addresses. unreadable: not complete.",
	}, []string{"message"})
	m := &metrics{
		queries:  messages.WithLabelValues("query"),
		messages: messages,
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_dns_evictions_total",
			Help: "Addresses, queries and TCP streams that were evicted because a pod had too many.",
		}, []string{"kind"}),
	}
	for _, r := range results {
		messages.WithLabelValues(string(r))
	}
	for _, kind := range []string{"address", "query", "stream"} {
		m.evicted(kind)
	}
	reg.MustRegister(messages, m.evictions, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_dns_addresses",
		Help: "Addresses learned, counted for each name and each pod. Some may have expired.",
	}, func() float64 { return float64(addresses()) }))
	return m
}

func (m *metrics) answered(r result) { m.messages.WithLabelValues(string(r)).Inc() }

func (m *metrics) evicted(kind string) prometheus.Counter { return m.evictions.WithLabelValues(kind) }
