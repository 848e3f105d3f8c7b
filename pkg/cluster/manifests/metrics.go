package manifests

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	errors prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		errors: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_manifest_errors",
			Help: "Invalid or unreadable files and folders of --manifests. If the agent has read all once, their last valid content is in force; if not, it enforces nothing, and new connections of pods wait.",
		}),
	}
	reg.MustRegister(m.errors)
	return m
}
