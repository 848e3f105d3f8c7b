package sealedfile

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts how a file was read and written.
type Metrics struct {
	Reads, Writes *prometheus.CounterVec // by result: Used or a Reason; success or error
}

// Used is the result of reading a file that is used.
const Used Reason = "used"

// NewMetrics registers the metrics of a file, whose content has further reasons not to be used.
func NewMetrics(reg prometheus.Registerer, file string, further ...Reason) *Metrics {
	m := &Metrics{
		Reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_saved_reads_total",
			Help: "Reads of saved files, with the label file: state or names. The reason if not used: version, node, kinds (others were enabled), age, boot (before it), resolvers (others were configured), clock (saved in the future).",
		}, []string{"result"}),
		Writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_saved_writes_total",
			Help: "Writes of saved files, with the label file.",
		}, []string{"result"}),
	}
	prometheus.WrapRegistererWith(prometheus.Labels{"file": file}, reg).MustRegister(m.Reads, m.Writes)
	for _, r := range append([]Reason{Used, Missing, Unreadable, Version, Corrupt}, further...) {
		m.Reads.WithLabelValues(string(r))
	}
	for _, result := range []string{"success", "error"} {
		m.Writes.WithLabelValues(result)
	}
	return m
}

func (m *Metrics) read(err error) {
	if m == nil {
		return
	}
	result := Used
	if err != nil {
		result = ReasonOf(err)
	}
	m.Reads.WithLabelValues(string(result)).Inc()
}

func (m *Metrics) wrote(err error) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	m.Writes.WithLabelValues(result).Inc()
}
