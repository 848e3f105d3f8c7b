package cniresults

import "github.com/prometheus/client_golang/prometheus"

// Label values for the source of addresses of new pods.
const (
	sourceCache  = "cni-cache"
	sourceStatus = "status"
)

type metrics struct {
	source *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		source: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_pod_address_source_info",
			Help: "1 for where addresses of new pods of this node are learned first.",
		}, []string{"source"}),
	}
	m.setSource(false)
	reg.MustRegister(m.source)
	return m
}

func (m *metrics) setSource(cache bool) {
	value := map[bool]float64{true: 1}
	m.source.WithLabelValues(sourceCache).Set(value[cache])
	m.source.WithLabelValues(sourceStatus).Set(value[!cache])
}
