package queue_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/queue"
)

// run is a Run of Queues on its way.
type run struct {
	*queue.Queues
	t      testing.TB
	reg    *prometheus.Registry
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

func always(v queue.Verdict) queue.Handler {
	return func(queue.Packet) queue.Verdict { return v }
}

// open is a gate that never was closed.
func open() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func start(t testing.TB, cfg queue.Config, handler queue.Handler) *run {
	t.Helper()
	return startGated(t, cfg, handler, open())
}

func startGated(t testing.TB, cfg queue.Config, handler queue.Handler, ready <-chan struct{}) *run {
	t.Helper()
	reg := prometheus.NewRegistry()
	cfg.Registerer = reg
	q, err := queue.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	r := &run{Queues: q, t: t, reg: reg, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = q.Run(ctx, handler, ready)
	}()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop ends the Run and returns its error.
func (r *run) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// metric returns the value of a series, by its only label value if it has one.
// Zero for one that is not there.
func (r *run) metric(name, label string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
