package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/pkg/status/gate"
)

// agentSelector selects the agents of install.yaml and the chart.
const agentSelector = "app.kubernetes.io/name=netpol-agent"

// Values of --status-sink that do not name a single sink.
const (
	sinkAuto = "auto"
	sinkNone = "none"
)

// writerOptions are the flags of the status writer.
type writerOptions struct {
	command.Shared
	sink            string
	conditionPrefix string
	startupTaint    string
	podReadiness    bool
	cleanup         bool // set by writerCleanup
}

func newWriterOptions() *writerOptions {
	return &writerOptions{Shared: command.NewShared(), sink: sinkAuto}
}

func (o *writerOptions) AddFlags(fs *pflag.FlagSet) {
	o.Shared.AddFlags(fs)
	o.addPrefixFlag(fs)
	fs.Var(oneOf(&o.sink, sinkAuto, status.SubresourceSink, status.AnnotationSink, sinkNone), "status-sink", "`WHERE` conditions of a NetworkPolicy are stored: subresource (its status), annotation, none, or auto: the first that the server stores. Those of other kinds are stored in their status, or with none not at all")
	fs.Var(optional(&o.startupTaint, validation.IsQualifiedName), "startup-taint", "`KEY` of a taint to remove from each node whose agent is ready, empty for none. Needs rights to list and watch the pods of the agents, and to list, watch and patch nodes")
	fs.BoolVar(&o.podReadiness, "pod-readiness", false, "make pods with the readiness gate "+string(gate.PoliciesEnforced)+" (deprecated), or with --feature-gates=PodNetworkReadiness=true "+string(gate.NetworkReady)+", ready once policies are in force for them. Without it they are never ready. Needs rights to list and watch all pods, and to patch their status, as in install-readiness.yaml")
}

func (o *writerOptions) addPrefixFlag(fs *pflag.FlagSet) {
	fs.Var(optional(&o.conditionPrefix, validation.IsDNS1123Subdomain), "condition-prefix", "`DOMAIN` before the types of conditions, as in example.com/Accepted, for clusters where another implementation writes the plain ones")
}

// Validate returns an error for each flag that contradicts other flags.
func (o *writerOptions) Validate(args []string) error {
	return errors.Join(command.NoArguments(args), o.Logging.Validate())
}

// writerCleanup is the command that removes the stored conditions of writers.
type writerCleanup struct {
	*writerOptions
	daemonSet string
}

func (c *writerCleanup) AddFlags(fs *pflag.FlagSet) {
	c.cleanup = true
	c.Logging.AddFlags(fs)
	c.API.AddFlags(fs)
	c.addPrefixFlag(fs)
	fs.Var(optional(&c.daemonSet, validation.IsDNS1123Subdomain), "wait-for-daemonset", "`NAME` of a DaemonSet in the namespace of this pod whose pods have to be ready on all nodes first, empty for none. Needs the right to get it")
}

// optional accepts a text that is empty or passes check.
func optional(target *string, check func(string) []string) *command.Value {
	return command.Checked(target, func(s string) error {
		if faults := check(s); s != "" && len(faults) > 0 {
			return errors.New(faults[0])
		}
		return nil
	})
}

// oneOf accepts one of names.
func oneOf(target *string, names ...string) *command.Value {
	return command.Checked(target, func(s string) error {
		if !slices.Contains(names, s) {
			return fmt.Errorf("must be one of %s", strings.Join(names, ", "))
		}
		return nil
	})
}
