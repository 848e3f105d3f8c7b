// Package packets counts and logs decided packets.
package packets

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// Module returns the module.
func Module() module.Module {
	return module.Module{Name: "packets", New: func(core *module.Core) (module.Part, error) {
		return module.Part{Tap: New(core.Registry, klog.LoggerWithName(core.Logger, "enforce")).Tap}, nil
	}}
}

// Observer counts and logs packets.
type Observer struct {
	metrics  *metrics
	logger   klog.Logger
	unparsed rate.Sometimes // bounds the log
}

// New returns an Observer. Its logger receives a line for each packet at level 4, and one for packets
// that cannot be parsed, at most every ten seconds. The zero logger logs nothing.
func New(reg prometheus.Registerer, logger klog.Logger) *Observer {
	return &Observer{metrics: newMetrics(reg), logger: logger, unparsed: rate.Sometimes{First: 1, Interval: 10 * time.Second}}
}

// Tap is an event.Tap. It does not allocate unless it logs.
func (o *Observer) Tap(ev *event.Event) {
	if ev.Result.Waits() {
		return
	}
	o.metrics.count(ev)
	if ev.Err != nil {
		o.unparsed.Do(func() { o.logger.Info("Packet cannot be parsed", "reason", ev.Err.Error()) })
	}
	if l := o.logger.V(4); l.Enabled() {
		log(l, ev)
	}
}

func log(l klog.Logger, ev *event.Event) {
	switch {
	case ev.Late:
		l.Info("Packet decided that does not begin a connection", "packet", ev.Packet, "decision", ev.Decision)
	case ev.Failure == event.NoFailure && !ev.Related && !ev.ByKernel:
		l.Info("Packet decided", "packet", ev.Query.Packet, "decision", ev.Decision)
	}
}
