package resolvers

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	resolvers prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{resolvers: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "netpol_dns_resolvers",
		Help: "Addresses and ports of DNS resolvers whose answers to pods are trusted.",
	})}
	reg.MustRegister(m.resolvers)
	return m
}
