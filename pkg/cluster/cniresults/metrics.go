package cniresults

import "github.com/prometheus/client_golang/prometheus"

// Label values for the source of addresses of new pods.
const (
	sourceCache  = "cni-cache"
	sourceStatus = "status"
)

type metrics struct {
	source *prometheus.GaugeVec
	faults *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		source: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_pod_address_source_info",
			Help: "1 for where addresses of new pods of this node are learned first.",
		}, []string{"source"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_cni_cache_errors_total",
			Help: "Files of the CNI cache that were ignored. too_long: 256 KiB. too_many_files: more than 4096, none is read.",
		}, []string{"reason"}),
	}
	m.setSource(false)
	for _, kind := range []string{faultMany, faultLong, faultRead, faultMalformed} {
		m.faults.WithLabelValues(kind)
	}
	reg.MustRegister(m.source, m.faults)
	return m
}

func (m *metrics) setSource(cache bool) {
	value := map[bool]float64{true: 1}
	m.source.WithLabelValues(sourceCache).Set(value[cache])
	m.source.WithLabelValues(sourceStatus).Set(value[!cache])
}
