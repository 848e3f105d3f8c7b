package agent

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
)

// handler serves the endpoints that Prometheus and the kubelet ask.
func (a *agent) handler(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", httpserver.Metrics(reg))
	mux.Handle("GET /livez", health(a.live))
	mux.Handle("GET /readyz", health(a.readiness))
	return mux
}

// live fails when packets wait and are not answered: then a restart helps.
func (a *agent) live() error {
	var errs []error
	for _, q := range a.queues {
		errs = append(errs, q.Live(time.Now()))
	}
	return errors.Join(errs...)
}

// readiness fails until the first snapshot is in force, and while rules cannot
// be written or a queue number is taken. A restart would not help.
func (a *agent) readiness() error {
	var errs []error
	if !a.metrics.hasSnapshot() {
		errs = append(errs, errors.New("no snapshot of the cluster yet"))
	}
	if slices.ContainsFunc(a.queues, func(q served) bool { return !q.Bound() }) {
		errs = append(errs, errors.New("not all queues are bound"))
	}
	if err := a.steerer.Healthy(); err != nil {
		errs = append(errs, fmt.Errorf("steering: %w", err))
	}
	if a.links != nil {
		if err := a.links.Healthy(); err != nil {
			errs = append(errs, fmt.Errorf("interfaces: %w", err))
		}
	}
	if err := a.reuse.Healthy(); err != nil {
		errs = append(errs, fmt.Errorf("connections of addresses that have changed hands are not removed: %w", err))
	}
	return errors.Join(errs...)
}

func health(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
