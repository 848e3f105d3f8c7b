package verdictcache

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

type metrics struct {
	packets [2]prometheus.Counter // by policy.Action: Deny, Allow
}

func newMetrics(reg prometheus.Registerer, c *Cache) *metrics {
	packets := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_remembered_packets_total",
		Help: "Packets that the kernel accepted or dropped without the agent.",
	}, []string{"verdict"})
	reg.MustRegister(packets, c.gauge("accept", &c.allowed), c.gauge("drop", &c.denied))
	return &metrics{[2]prometheus.Counter{policy.Deny: packets.WithLabelValues("drop"), policy.Allow: packets.WithLabelValues("accept")}}
}

// gauge exports how many classes are recorded in set.
func (c *Cache) gauge(verdict string, set *classes) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "netpol_remembered_verdicts",
		Help:        "Classes whose verdict the kernel may remember.",
		ConstLabels: prometheus.Labels{"verdict": verdict},
	}, func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(len(set.entries))
	})
}
