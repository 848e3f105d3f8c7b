package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// writerName is the argument that runs the status writer.
const writerName = "status-writer"

// agentSelector selects the agents that an installation makes.
const agentSelector = "app.kubernetes.io/name=kube-network-policies"

// The values of --status-sink that do not name one sink.
const (
	sinkAuto = "auto"
	sinkNone = "none"
)

var sinkNames = []string{sinkAuto, status.SubresourceSink, status.AnnotationSink, sinkNone}

// writerOptions are the flags of the status writer.
type writerOptions struct {
	sharedOptions
	sink            string
	conditionPrefix string
	events          bool
	qps             float32
	burst           int
	leaseNamespace  string
	startupTaint    string
	denials         denialsOptions
	cleanup         bool
}

func newWriterOptions() *writerOptions {
	return &writerOptions{
		sharedOptions:  newSharedOptions(),
		sink:           sinkAuto,
		events:         true,
		qps:            5,
		burst:          20,
		leaseNamespace: "kube-system",
	}
}

func (o *writerOptions) addFlags(fs *pflag.FlagSet) {
	o.sharedOptions.addFlags(fs)
	fs.StringVar(&o.sink, "status-sink", o.sink, "where the conditions of a NetworkPolicy are stored: subresource (its status, on API servers 1.24 to 1.27 with a feature gate), annotation, none, or auto, which uses the status where the server stores it and the annotation elsewhere. With a sink that the server lacks nothing is stored. Conditions of other kinds are stored in their status, or with none not at all")
	fs.StringVar(&o.conditionPrefix, "condition-prefix", o.conditionPrefix, "`DOMAIN` before the types of conditions, as in example.com/Accepted, for clusters where another implementation writes the same types; must be a DNS subdomain")
	fs.BoolVar(&o.events, "events", o.events, "create a Warning Event for each problem of a policy whose conditions cannot be stored in its status")
	fs.Float32Var(&o.qps, "status-qps", o.qps, "average rate of writes per second, conditions and Events together. A lower rate delays conditions, a higher one adds load to the API server. Must be positive")
	fs.IntVar(&o.burst, "status-burst", o.burst, "number of writes that may exceed --status-qps at once after a quiet period. Must be positive")
	fs.StringVar(&o.leaseNamespace, "leader-elect-namespace", o.leaseNamespace, "namespace of the Lease "+status.LeaseName+", which elects one of several writers. Writers with different values would all write")
	fs.StringVar(&o.startupTaint, "startup-taint", o.startupTaint, "`KEY` of a taint to remove from each node whose agent is ready, empty for none. The agents are the pods of --leader-elect-namespace with the label "+agentSelector+". It needs rights to list and watch these pods, and to list, watch and patch nodes")
	o.denials.addFlags(fs)
	fs.BoolVar(&o.cleanup, "cleanup", o.cleanup, "remove all conditions and annotations that a writer has stored, and exit. Stop the writer first: it would store them again")
}

// validate returns an error for each flag with a wrong value.
func (o *writerOptions) validate(args []string) error {
	var errs []error
	fault := func(flag string, value any, format string, args ...any) {
		errs = append(errs, flagError(flag, value, format, args...))
	}
	if len(args) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
	}
	if !slices.Contains(sinkNames, o.sink) {
		fault("status-sink", o.sink, "must be one of %s", strings.Join(sinkNames, ", "))
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
	if o.startupTaint != "" {
		if faults := validation.IsQualifiedName(o.startupTaint); len(faults) > 0 {
			fault("startup-taint", o.startupTaint, "%s", faults[0])
		}
	}
	return errors.Join(append(errs, o.denials.validate(), o.sharedOptions.validate())...)
}
