package queue

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

type metrics struct {
	accepted, dropped prometheus.Counter
	pended            prometheus.Counter
	gone, refused     prometheus.Counter
	enobufs           prometheus.Counter
	malformed         prometheus.Counter
	panics            prometheus.Counter
	pendingNow        prometheus.Gauge
	bound             *prometheus.GaugeVec
	callErrors        [operations]prometheus.Counter
	rebinds, lost     prometheus.Counter
}

func newMetrics(cfg Config) *metrics {
	verdicts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_queue_verdicts_total",
		Help: "Packets answered. pending: they wait because a pod or peer was not known yet, and count again when they are answered.",
	}, []string{"verdict"})
	errors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_queue_errors_total",
		Help: "What went wrong at the queues. bind, configure, wait, receive, send, close: failed calls, which are retried. rebind: the socket did not work. overflow: of a receive buffer. malformed: messages of the kernel. gone: verdicts on packets that were dropped while they waited. refused: other verdicts. panic: while a packet was decided; please report it.",
	}, []string{"error"})
	m := &metrics{
		accepted:  verdicts.WithLabelValues("accept"),
		dropped:   verdicts.WithLabelValues("drop"),
		pended:    verdicts.WithLabelValues("pending"),
		gone:      errors.WithLabelValues("gone"),
		refused:   errors.WithLabelValues("refused"),
		enobufs:   errors.WithLabelValues("overflow"),
		malformed: errors.WithLabelValues("malformed"),
		rebinds:   errors.WithLabelValues("rebind"),
		panics:    errors.WithLabelValues("panic"),
		pendingNow: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_queue_pending",
			Help: "Packets pending now.",
		}),
		bound: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_queue_bound",
			Help: "1 while this agent has bound the queue number, else 0.",
		}, byQueue),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_queue_lost_total",
			Help: "Packets that the kernel dropped in a queue whose socket did not work.",
		}),
	}
	for op := range operations {
		m.callErrors[op] = errors.WithLabelValues(op.String())
	}
	reg := cfg.Registerer
	if cfg.Purpose != "" {
		reg = prometheus.WrapRegistererWith(prometheus.Labels{"purpose": cfg.Purpose}, reg)
	}
	reg.MustRegister(verdicts, errors, m.pendingNow, m.bound, m.lost, collector{cfg.Kernel, cfg.numbers()})
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

// collector reads the statistics of our queues at each scrape. It uses the names of existing
// dashboards.
type collector struct {
	kernel  Kernel
	numbers queuenum.Range
}

var byQueue = []string{"queue"}

var kernelMetrics = []struct {
	desc  *prometheus.Desc
	typ   prometheus.ValueType
	value func(Stat) uint32
}{
	{prometheus.NewDesc("nfqueue_queue_total", "Packets that wait in the queue.", byQueue, nil),
		prometheus.GaugeValue, func(s Stat) uint32 { return s.Waiting }},
	{prometheus.NewDesc("nfqueue_queue_dropped", "Packets dropped because the queue was full, since it was bound.", byQueue, nil),
		prometheus.CounterValue, func(s Stat) uint32 { return s.QueueDropped }},
	{prometheus.NewDesc("nfqueue_user_dropped", "Packets dropped because the receive buffer was full, since the queue was bound.", byQueue, nil),
		prometheus.CounterValue, func(s Stat) uint32 { return s.UserDropped }},
	{prometheus.NewDesc("nfqueue_packet_id", "Packets queued since the queue was bound.", byQueue, nil),
		prometheus.CounterValue, func(s Stat) uint32 { return s.PacketID }},
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
		if !c.numbers.Contains(s.Number) {
			continue
		}
		for _, k := range kernelMetrics {
			ch <- prometheus.MustNewConstMetric(k.desc, k.typ, float64(k.value(s)), queueLabel(s.Number))
		}
	}
}
