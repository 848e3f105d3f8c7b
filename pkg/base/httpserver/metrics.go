package httpserver

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// collectInterval is how long a collection is reused.
const collectInterval = time.Second

// metricsHandler serves the metrics of reg. Only one request at a time collects. Remote
// clients and pods get a collection of the last second, and responses are not compressed,
// so that they cannot make the agent work.
func metricsHandler(reg *prometheus.Registry) http.Handler {
	c := &collection{gatherer: reg, count: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_metrics_collections_total",
		Help: "Collections of all metrics. Several requests may share one.",
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

// collection is the latest collection of all metrics.
type collection struct {
	gatherer prometheus.Gatherer
	count    prometheus.Counter

	mu       sync.Mutex
	at       time.Time
	families []*dto.MetricFamily // read-only
	err      error
}

// gather returns a collection that is at most maxAge old.
func (c *collection) gather(maxAge time.Duration) ([]*dto.MetricFamily, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) >= maxAge {
		c.count.Inc()
		c.families, c.err = c.gatherer.Gather()
		c.at = time.Now()
	}
	return c.families, c.err
}
