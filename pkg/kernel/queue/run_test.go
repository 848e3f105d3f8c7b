package queue_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// run is a running Queues.Run.
type run struct {
	*queue.Queues
	t      testing.TB
	reg    *prometheus.Registry
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
}

func always(v queue.Verdict) queue.Handler {
	return func(queue.Packet) queue.Verdict { return v }
}

// open returns a gate that is already open.
func open() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func start(t testing.TB, cfg queue.Config, handler queue.Handler, lower ...queue.Config) *run {
	t.Helper()
	return startGated(t, cfg, handler, open(), lower...)
}

func startGated(t testing.TB, cfg queue.Config, handler queue.Handler, ready <-chan struct{}, lower ...queue.Config) *run {
	t.Helper()
	reg := prometheus.NewRegistry()
	cfg.Registerer = reg
	if len(lower) > 0 {
		cfg.Purpose = "first"
	}
	for i := range lower {
		lower[i].Registerer = reg
		if lower[i].Purpose == "" {
			lower[i].Purpose = fmt.Sprintf("lower %d", i)
		}
	}
	q, err := queue.New(cfg, lower...)
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

// metric returns the sum of the series with the value in a label, or of all series if it is empty.
func (r *run) metric(name, value string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if value == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == value }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
