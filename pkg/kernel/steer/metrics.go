package steer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// scrapeTimeout bounds the time for reading the counters.
const scrapeTimeout = 2 * time.Second

type metrics struct {
	lastSuccess prometheus.Gauge
	programming prometheus.Histogram
	support     *prometheus.GaugeVec
	external    *prometheus.CounterVec
	repairs     prometheus.Counter
	holder      prometheus.Gauge
	inPlace     atomic.Bool // the table exists, so its counters can be read
}

// How a change of the table by another process was found.
const (
	byNotification = "notification"
	byPoll         = "poll"
)

func newMetrics(reg prometheus.Registerer, s *Steerer) *metrics {
	m := &metrics{
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_steer_last_success_timestamp_seconds",
			Help: "When the nftables table was last synced or found correct.",
		}),
		programming: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_policy_programming_duration_seconds",
			Help:    "Time from receiving a change of the cluster to having it in force, also in the nftables table.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14), // 10 ms to 82 s
		}),
		external: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_steer_external_changes_total",
			Help: "Changes of the nftables table by other processes, found by notification (the log names the process) or poll.",
		}, []string{"found"}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_steer_repairs_total",
			Help: "Repairs of the nftables table after changes by other processes.",
		}),
		holder: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_steer_holder",
			Help: "1 while this agent holds the nftables table, 0 while another agent does, or none.",
		}),
		support: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_kernel_support",
			Help: "Kernel features: 1 supported, 0 not, -1 unknown. queue: the queue statement, else xtables queues packets. udp_clash: two packets of one new UDP connection may wait at once (kernel 6.12).",
		}, []string{"feature"}),
	}
	for _, found := range []string{byNotification, byPoll} {
		m.external.WithLabelValues(found)
	}
	reg.MustRegister(m.lastSuccess, m.programming, m.support,
		m.external, m.repairs, m.holder, &countersCollector{kernel: s.kernel, inPlace: &m.inPlace})
	return m
}

func (m *metrics) describeKernel(caps Capabilities) {
	for feature, err := range caps.features() {
		m.support.WithLabelValues(feature).Set(supportValue(err))
	}
}

func supportValue(err error) float64 {
	switch {
	case err == nil:
		return 1
	case errors.Is(err, errors.ErrUnsupported):
		return 0
	}
	return -1
}

// synced records a sync. o is the observed state after it.
func (m *metrics) synced(err error, o *observedState) {
	if err != nil {
		return
	}
	m.lastSuccess.SetToCurrentTime()
	m.inPlace.Store(o.layout == ours)
}

var (
	steeredDesc = prometheus.NewDesc("netpol_steered_packets_total",
		"Packets that the table sent to the agent's queues. decide: also to overflow.", []string{"purpose"}, nil)
	untrackedDesc = prometheus.NewDesc("netpol_untracked_packets_total",
		"Packets sent to the queues though other software keeps them from connection tracking (NOTRACK).", nil, nil)
	droppedDesc = prometheus.NewDesc("netpol_table_dropped_packets_total",
		"Packets of pods that the table drops before any policy. forged_source: the route to their source is not through the interface that they came in by. tunnel: to a tunnel of their own node. link: between pods of one bridge with link-local, broadcast or multicast addresses.", []string{"reason"}, nil)
	copiedMarksDesc = prometheus.NewDesc("netpol_copied_marks_total",
		"Connections whose mark had one of the agent's bits before the agent decided. The bits are cleared.", nil, nil)
)

// tableMetrics are the metrics of the table's counters, by name of the counter.
var tableMetrics = map[string]struct {
	desc  *prometheus.Desc
	label []string
}{
	steeredCounter:       {steeredDesc, []string{"decide"}},
	auditCounter:         {steeredDesc, []string{"audit"}},
	untrackedCounter:     {untrackedDesc, nil},
	forgedSourcesCounter: {droppedDesc, []string{"forged_source"}},
	tunnelsCounter:       {droppedDesc, []string{"tunnel"}},
	linksCounter:         {droppedDesc, []string{"link"}},
	copiedMarksCounter:   {copiedMarksDesc, nil},
}

// Counted returns how many packets the table sent to queues, and how many of them other software keeps
// from connection tracking.
func (s *Steerer) Counted(ctx context.Context) (steered, untracked uint64, err error) {
	packets, err := s.kernel.counters(ctx)
	return packets[steeredCounter], packets[untrackedCounter], err
}

// countersCollector reads the counters of the table at each scrape. There are no samples while they
// cannot be read.
type countersCollector struct {
	kernel  kernel
	inPlace *atomic.Bool
}

// Describe implements prometheus.Collector.
func (c *countersCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{steeredDesc, untrackedDesc, droppedDesc, copiedMarksDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *countersCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.inPlace.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	packets, err := c.kernel.counters(ctx)
	if err != nil {
		return
	}
	for name, m := range tableMetrics {
		if n, ok := packets[name]; ok {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(n), m.label...)
		}
	}
}
