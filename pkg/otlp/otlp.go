// Package otlp exports records of flows to an OpenTelemetry collector: OTLP metrics over
// HTTP. It keeps nothing: what a collector does not take is counted as dropped, and the next
// export has the counts of that time.
package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
)

const (
	// DefaultInterval is the default of Config.Interval, which is at least MinInterval.
	DefaultInterval = time.Minute
	MinInterval     = 10 * time.Second
	// timeout ends a request that the collector does not answer.
	timeout = 5 * time.Second
	// batch is the number of points in a request, of less than 1 KiB each. Collectors
	// bound requests.
	batch = 512
	// path is where the OTLP specification has metrics, for an Endpoint without one.
	path = "/v1/metrics"
)

// Config configures an Exporter.
type Config struct {
	// Endpoint is the URL of the collector, see ParseEndpoint.
	Endpoint *url.URL
	// TLS is for an Endpoint of https. Nil trusts the certificates that the system does.
	TLS *tls.Config
	// Interval is the time between two exports.
	Interval time.Duration
	// Node is the name of the node, and Version that of this program.
	Node, Version string
	// Read returns the records to export.
	Read func() []flows.Record
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// ParseEndpoint reads the URL of a collector: http, which is not encrypted, or https.
// Without a path it is /v1/metrics.
func ParseEndpoint(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("must be a host, a port and a path only")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = path
	}
	return u, nil
}

// Exporter exports records until Run ends.
type Exporter struct {
	cfg          Config
	sender       *otlpmetrichttp.Exporter
	resource     *resource.Resource
	sent, failed prometheus.Counter
	failing      bool // the last export has failed
}

// New returns an Exporter that has not connected yet.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	sender, err := otlpmetrichttp.New(ctx,
		otlpmetrichttp.WithTLSClientConfig(cfg.TLS),
		otlpmetrichttp.WithEndpointURL(cfg.Endpoint.String()),
		otlpmetrichttp.WithTimeout(timeout),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression),
		// The next export has what this one had, and more.
		otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: false}),
		otlpmetrichttp.WithTemporalitySelector(func(metric.InstrumentKind) metricdata.Temporality { return metricdata.CumulativeTemporality }),
	)
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", cfg.Endpoint, err)
	}
	points := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_otlp_points_total",
		Help: "Data points of flows for the OpenTelemetry collector, by whether it has taken them (sent) or not (dropped).",
	}, []string{"result"})
	cfg.Registerer.MustRegister(points)
	return &Exporter{
		cfg: cfg, sender: sender, sent: points.WithLabelValues("sent"), failed: points.WithLabelValues("dropped"),
		resource: resource.NewSchemaless(
			attribute.String("service.name", "kube-network-policies"),
			attribute.String("service.version", cfg.Version),
			attribute.String("k8s.node.name", cfg.Node),
		),
	}, nil
}

// Run exports records until ctx ends.
func (e *Exporter) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "otlp"))
	tick := time.NewTicker(e.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// It only closes connections. ctx has ended.
			return e.sender.Shutdown(context.WithoutCancel(ctx))
		case <-tick.C:
			e.export(ctx)
		}
	}
}

// export sends the records as they are now. After a request that fails the others are
// not tried: a collector that does not answer costs one timeout.
func (e *Exporter) export(ctx context.Context) {
	all := pointsOf(e.cfg.Read())
	left := len(all)
	var err error
	for left > 0 && err == nil {
		n := min(batch, left)
		from := len(all) - left
		if err = e.sender.Export(ctx, e.message(all[from:from+n])); err == nil {
			e.sent.Add(float64(n))
			left -= n
		}
	}
	e.failed.Add(float64(left))
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil && !e.failing:
		logger.Error(err, "Flows could not be exported; this is logged once until they can", "endpoint", e.cfg.Endpoint, "dropped", left)
	case err == nil && e.failing:
		logger.Info("Flows are exported again", "endpoint", e.cfg.Endpoint)
	}
	e.failing = err != nil
}

// message returns what a request has.
func (e *Exporter) message(all []point) *metricdata.ResourceMetrics {
	packets := metricdata.Sum[int64]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: true}
	var bytes metricdata.Gauge[int64]
	for i := range all {
		p := &all[i]
		packets.DataPoints = append(packets.DataPoints, metricdata.DataPoint[int64]{Attributes: p.attributes, StartTime: p.first, Time: p.now, Value: p.packets})
		if p.counted {
			bytes.DataPoints = append(bytes.DataPoints, metricdata.DataPoint[int64]{Attributes: p.attributes, Time: p.now, Value: p.bytes})
		}
	}
	metrics := []metricdata.Metrics{{Name: "netpol.flow.packets", Description: "Packets that were decided, mostly the first ones of connections.", Unit: "{packet}", Data: packets}}
	if len(bytes.DataPoints) > 0 {
		metrics = append(metrics, metricdata.Metrics{Name: "netpol.flow.open.bytes", Description: "Bytes of connections that are open, in both directions.", Unit: "By", Data: bytes})
	}
	return &metricdata.ResourceMetrics{Resource: e.resource, ScopeMetrics: []metricdata.ScopeMetrics{{
		Scope:   instrumentation.Scope{Name: "sigs.k8s.io/kube-network-policies", Version: e.cfg.Version},
		Metrics: metrics,
	}}}
}
