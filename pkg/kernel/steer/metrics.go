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
	syncs       *prometheus.CounterVec
	lastSuccess prometheus.Gauge
	programming prometheus.Histogram
	divert      *prometheus.GaugeVec
	support     *prometheus.GaugeVec
	external    *prometheus.CounterVec
	repairs     prometheus.Counter
	lost        prometheus.Counter
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
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_steer_syncs_total",
			Help: "Syncs of the nftables table.",
		}, []string{"result"}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_steer_last_success_timestamp_seconds",
			Help: "When the nftables table was last synced or found correct.",
		}),
		programming: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "netpol_policy_programming_duration_seconds",
			Help:    "Time from receiving a change of the cluster to having it in force, in the nftables table too if other pods are selected.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14), // 10 ms to 82 s
		}),
		divert: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_divert_info",
			Help: "1 for the mechanism that queues packets: queue statement or xtables target.",
		}, []string{"mode"}),
		external: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_steer_external_changes_total",
			Help: "Changes of the nftables table by other processes, found by notification (the log names the process) or poll.",
		}, []string{"found"}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_steer_repairs_total",
			Help: "Repairs of the nftables table after changes by other processes.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_steer_lost_notifications_total",
			Help: "Times nftables notifications were lost. The table is verified each time.",
		}),
		holder: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_steer_holder",
			Help: "1 while this agent holds the nftables table, 0 while another agent does, or none.",
		}),
		support: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_kernel_support",
			Help: "Kernel features: 1 supported, 0 not, -1 unknown. udp_clash: two packets of one new UDP connection may wait at once (kernel 6.12).",
		}, []string{"feature"}),
	}
	for _, result := range []string{"success", "error"} {
		m.syncs.WithLabelValues(result)
	}
	for _, found := range []string{byNotification, byPoll} {
		m.external.WithLabelValues(found)
	}
	reg.MustRegister(m.syncs, m.lastSuccess, m.programming, m.divert, m.support,
		m.external, m.repairs, m.lost, m.holder, &countersCollector{kernel: s.kernel, inPlace: &m.inPlace})
	return m
}

func (m *metrics) describeKernel(divert Divert, caps Capabilities) {
	m.divert.WithLabelValues(divert.String()).Set(1)
	for feature, err := range map[string]error{
		"queue": caps.Queue, "xtables": caps.XTables, "sctp_conntrack": caps.SCTPConntrack, "udp_clash": caps.UDPClash,
		"source_check": caps.SourceCheck, "share": caps.Share, "remember": caps.Remember, "reject": caps.Reject,
	} {
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

// synced counts a sync. o is the observed state after it, nil after an error.
func (m *metrics) synced(err error, o *observedState) {
	if err != nil {
		m.syncs.WithLabelValues("error").Inc()
		return
	}
	m.syncs.WithLabelValues("success").Inc()
	m.lastSuccess.SetToCurrentTime()
	m.inPlace.Store(o.layout == ours)
}

var steeredDesc = prometheus.NewDesc("netpol_steered_packets_total",
	"Packets that the table sent to the agent's queues.", nil, nil)

var untrackedDesc = prometheus.NewDesc("netpol_untracked_packets_total",
	"Packets sent to the queues though other software keeps them from connection tracking (NOTRACK). Replies among them are decided like first packets.", nil, nil)

var auditDesc = prometheus.NewDesc("netpol_audit_steered_packets_total",
	"Packets that the table sent to the audit queue. The kernel accepts those that the agent does not read.", nil, nil)

var forgedSourcesDesc = prometheus.NewDesc("netpol_forged_source_packets_total",
	"Packets dropped because the route to their source is not through the interface that they came in by: a pod forged the source, its namespace should allow forwarding, or --source-check-exempt should name the interface.", nil, nil)

var podTunnelsDesc = prometheus.NewDesc("netpol_pod_tunnel_packets_total",
	"Packets dropped because pods sent them to a tunnel of their own node.", nil, nil)

var podLinksDesc = prometheus.NewDesc("netpol_pod_link_packets_total",
	"Packets dropped because pods of one bridge sent them to each other with link-local, broadcast or multicast addresses. A broadcast counts once for each port.", nil, nil)

var copiedMarksDesc = prometheus.NewDesc("netpol_copied_marks_total",
	"Connections whose mark had one of the agent's bits before the agent decided: another connection's, for example copied by a helper of connection tracking. The bits are cleared.", nil, nil)

// counterDescs are the metrics of the table's counters, by name of the counter.
var counterDescs = map[string]*prometheus.Desc{
	steeredCounter:       steeredDesc,
	UntrackedCounter:     untrackedDesc,
	auditCounter:         auditDesc,
	forgedSourcesCounter: forgedSourcesDesc,
	tunnelsCounter:       podTunnelsDesc,
	linksCounter:         podLinksDesc,
	copiedMarksCounter:   copiedMarksDesc,
}

// countersCollector reads the counters of the table at each scrape. There are no samples while they
// cannot be read.
type countersCollector struct {
	kernel  kernel
	inPlace *atomic.Bool
}

// Describe implements prometheus.Collector.
func (c *countersCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range counterDescs {
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
	for name, desc := range counterDescs {
		if n, ok := packets[name]; ok {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n))
		}
	}
}
