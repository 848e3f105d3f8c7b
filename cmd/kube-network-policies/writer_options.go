package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// writerName is the argument that chooses the status writer.
const writerName = "status-writer"

// The values of --status-sink that name no single sink.
const (
	sinkAuto = "auto"
	sinkNone = "none"
)

var sinkNames = []string{sinkAuto, status.SubresourceSink, status.AnnotationSink, sinkNone}

// writerOptions are the flags of the status writer.
type writerOptions struct {
	kubeconfig         string
	kinds              kindFlags
	sink               string
	conditionPrefix    string
	events             bool
	qps                float32
	burst              int
	featureGates       map[string]bool
	leaseNamespace     string
	metricsBindAddress string
	cleanup            bool
	logging            *logsapi.LoggingConfiguration
}

func newWriterOptions() *writerOptions {
	return &writerOptions{
		sink:               sinkAuto,
		events:             true,
		qps:                5,
		burst:              20,
		featureGates:       map[string]bool{},
		leaseNamespace:     "kube-system",
		metricsBindAddress: ":9080",
		logging:            logsapi.NewLoggingConfiguration(),
	}
}

func (o *writerOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "kubeconfig file that tells the API server; empty uses the service account of the pod")
	o.kinds = addKindFlags(fs, "report on %s too; while its CustomResourceDefinition is not installed it is waited for. Agents and status writer need the same value")
	fs.StringVar(&o.sink, "status-sink", o.sink, "where the conditions of a NetworkPolicy go: subresource (its status, which API servers 1.24 to 1.27 can serve), annotation, none, or auto, which takes the status where the server stores it and else the annotation. A sink that the server does not have stores nothing. Conditions of other kinds go to their status, or with none nowhere")
	fs.StringVar(&o.conditionPrefix, "condition-prefix", o.conditionPrefix, "domain to put before the types of conditions, as in example.com/Accepted, where another implementation writes the plain ones")
	fs.BoolVar(&o.events, "events", o.events, "send a Warning Event for each problem of a policy whose conditions cannot go to its status")
	fs.Float32Var(&o.qps, "status-qps", o.qps, "writes per second over time, conditions and events together. A low value delays what authors see, a high one burdens the API server")
	fs.IntVar(&o.burst, "status-burst", o.burst, "writes that may be made at once after a quiet time")
	addFeatureGates(fs, &o.featureGates)
	fs.StringVar(&o.leaseNamespace, "leader-elect-namespace", o.leaseNamespace, "namespace of the Lease "+status.LeaseName+" by which several writers agree on one. Writers with different values write both")
	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", o.metricsBindAddress, "address and port of /metrics, /livez and /readyz")
	fs.BoolVar(&o.cleanup, "cleanup", o.cleanup, "remove all conditions and annotations that a writer has stored, and exit. A writer that still runs would store them anew")
	logsapi.AddFlags(o.logging, fs)
}

// validate names every flag whose value cannot work, and the value.
func (o *writerOptions) validate(args []string) error {
	var errs []error
	fault := func(flag string, value any, format string, more ...any) {
		errs = append(errs, fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, more...)))
	}
	if len(args) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
	}
	if !slices.Contains(sinkNames, o.sink) {
		fault("status-sink", o.sink, "is none of %s", strings.Join(sinkNames, ", "))
	}
	if o.conditionPrefix != "" {
		if faults := validation.IsDNS1123Subdomain(o.conditionPrefix); len(faults) > 0 {
			fault("condition-prefix", o.conditionPrefix, "%s", faults[0])
		}
	}
	if !(o.qps > 0) {
		fault("status-qps", o.qps, "must be positive")
	}
	if o.burst < 1 {
		fault("status-burst", o.burst, "must be positive")
	}
	if faults := validation.IsDNS1123Label(o.leaseNamespace); len(faults) > 0 {
		fault("leader-elect-namespace", o.leaseNamespace, "%s", faults[0])
	}
	if _, _, err := net.SplitHostPort(o.metricsBindAddress); err != nil {
		fault("metrics-bind-address", o.metricsBindAddress, "must be host:port (%v)", err)
	}
	if err := logsapi.Validate(o.logging, nil, nil).ToAggregate(); err != nil {
		fault("logging-format", o.logging.Format, "%v", err)
	}
	return errors.Join(append(errs, checkFeatureGates(o.featureGates))...)
}
