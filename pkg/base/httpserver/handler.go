package httpserver

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
)

// NewRegistry returns a registry with metrics of the process and its build.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
		version.NewCollector("kube_network_policies"),
	)
	return reg
}

// The paths of the probes.
const (
	livez  = "/livez"
	readyz = "/readyz"
)

// Handler serves the metrics of reg and the probes. A probe fails while live or ready
// returns an error.
func Handler(reg *prometheus.Registry, live, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(reg))
	mux.Handle("GET "+livez, probe(live))
	mux.Handle("GET "+readyz, probe(ready))
	return mux
}

func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
