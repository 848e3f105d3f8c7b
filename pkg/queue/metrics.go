package queue

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	accepted, dropped prometheus.Counter
	gone, refused     prometheus.Counter
	enobufs           prometheus.Counter
	malformed         prometheus.Counter
	panics            prometheus.Counter
	pendingTotal      prometheus.Counter
	pendingNow        prometheus.Gauge
	bound             *prometheus.GaugeVec
	callErrors        [operations]prometheus.Counter
	rebinds, lost     prometheus.Counter
}

func newMetrics(cfg Config) *metrics {
	verdicts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_queue_verdicts_total",
		Help: "Packets answered, by verdict.",
	}, []string{"verdict"})
	verdictErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_queue_verdict_errors_total",
		Help: "Verdicts that the kernel did not accept, by reason: gone (the packet was dropped while it waited) or refused.",
	}, []string{"reason"})
	callErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_queue_call_errors_total",
		Help: "Calls to the kernel that failed, by operation. They are retried.",
	}, []string{"operation"})
	m := &metrics{
		accepted: verdicts.WithLabelValues("accept"),
		dropped:  verdicts.WithLabelValues("drop"),
		gone:     verdictErrors.WithLabelValues("gone"),
		refused:  verdictErrors.WithLabelValues("refused"),
		enobufs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_enobufs_total",
			Help: "Times a receive buffer was found to have overflowed. The packets are counted in nfqueue_user_dropped.",
		}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_malformed_messages_total",
			Help: "Malformed messages of the kernel. If the packet could be identified it was dropped.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_panics_total",
			Help: "Panics while a packet was decided.",
		}),
		pendingTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_pending_total",
			Help: "Packets that could not be decided at once and became pending.",
		}),
		pendingNow: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_queue_pending",
			Help: "Packets pending now: they wait in the queue until they can be decided.",
		}),
		bound: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_queue_bound",
			Help: "Whether the queue number is bound by this process (1) or not (0).",
		}, []string{"queue"}),
		rebinds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_rebinds_total",
			Help: "Times a queue was closed and bound again because its socket did not work.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_lost_total",
			Help: "Packets that waited in a queue when it was closed because its socket did not work. The kernel dropped them.",
		}),
	}
	for op := range operations {
		m.callErrors[op] = callErrors.WithLabelValues(op.String())
	}
	reg := cfg.Registerer
	if cfg.Purpose != "" {
		reg = prometheus.WrapRegistererWith(prometheus.Labels{"purpose": cfg.Purpose}, reg)
	}
	reg.MustRegister(verdicts, verdictErrors, m.enobufs, m.malformed, m.panics, m.pendingTotal, m.pendingNow, m.bound,
		callErrors, m.rebinds, m.lost, collector{kernel: cfg.Kernel, first: int(cfg.First), count: int(cfg.Count)})
	return m
}

func (m *metrics) setBound(number uint16, yes bool) {
	value := 0.0
	if yes {
		value = 1
	}
	m.bound.WithLabelValues(queueLabel(number)).Set(value)
}

func queueLabel(number uint16) string { return strconv.Itoa(int(number)) }

// collector reads the statistics of our queues at scrape time. The names are those that
// existing dashboards use.
type collector struct {
	kernel       Kernel
	first, count int
}

const restarts = " Starts from 0 each time the queue is bound."

var kernelMetrics = []struct {
	desc  *prometheus.Desc
	typ   prometheus.ValueType
	value func(Stat) uint32
}{
	{kernelDesc("nfqueue_queue_total", "Packets in the queue now, waiting for a verdict."),
		prometheus.GaugeValue, func(s Stat) uint32 { return s.Waiting }},
	{kernelDesc("nfqueue_queue_dropped", "Packets dropped because the queue was full."+restarts),
		prometheus.CounterValue, func(s Stat) uint32 { return s.QueueDropped }},
	{kernelDesc("nfqueue_user_dropped", "Packets dropped because the receive buffer of the socket was full."+restarts),
		prometheus.CounterValue, func(s Stat) uint32 { return s.UserDropped }},
	{kernelDesc("nfqueue_packet_id", "Id of the latest packet of the queue: how many packets were queued."+restarts),
		prometheus.CounterValue, func(s Stat) uint32 { return s.PacketID }},
}

func kernelDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"queue"}, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, k := range kernelMetrics {
		ch <- k.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	stats, err := c.kernel.Stats()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(kernelMetrics[0].desc, err)
		return
	}
	for _, s := range stats {
		if n := int(s.Number); n < c.first || n >= c.first+c.count {
			continue
		}
		for _, k := range kernelMetrics {
			ch <- prometheus.MustNewConstMetric(k.desc, k.typ, float64(k.value(s)), queueLabel(s.Number))
		}
	}
}
