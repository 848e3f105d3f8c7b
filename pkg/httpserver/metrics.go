package httpserver

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// collectInterval is how long what was collected is served.
const collectInterval = time.Second

// Metrics returns the handler of reg's metrics. They are collected by one request at
// a time. Clients of other machines, and pods, are served what was collected in the
// last second; answers are not compressed.
func Metrics(reg *prometheus.Registry) http.Handler {
	c := &collection{of: reg, count: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_metrics_collections_total",
		Help: "Collections of all metrics. Several requests may be answered by one.",
	})}
	reg.MustRegister(c.count)
	handler := func(maxAge time.Duration) http.Handler {
		gatherer := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return c.gather(maxAge) })
		return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, Registry: reg, DisableCompression: true})
	}
	fresh, recent := handler(0), handler(collectInterval)
	return promhttp.InstrumentMetricHandler(reg, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if local(r) {
			fresh.ServeHTTP(w, r)
		} else {
			recent.ServeHTTP(w, r)
		}
	}))
}

// collection is the last one.
type collection struct {
	of    prometheus.Gatherer
	count prometheus.Counter

	mu       sync.Mutex
	at       time.Time
	families []*dto.MetricFamily // not to be changed
	err      error
}

// gather returns what was collected no longer than maxAge ago.
func (c *collection) gather(maxAge time.Duration) ([]*dto.MetricFamily, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) >= maxAge {
		c.count.Inc()
		c.families, c.err = c.of.Gather()
		c.at = time.Now()
	}
	return c.families, c.err
}
