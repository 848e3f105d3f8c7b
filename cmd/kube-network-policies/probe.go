package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent/serve"
)

const (
	probeName = "probe"
	// probeTimeout is below the timeouts of the probes in install.yaml.
	probeTimeout = 4 * time.Second
)

// The answers of printedEndpoints are printed, those of healthEndpoints are an exit status.
var (
	healthEndpoints  = []string{"livez", "readyz"}
	printedEndpoints = []string{"metrics", "table"}
)

// probeOptions are the flags of the command probe.
type probeOptions struct {
	socket   string
	endpoint string
}

func newProbeOptions() *probeOptions { return &probeOptions{socket: serve.DefaultSocket} }

func (o *probeOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.socket, "probe-socket", o.socket, "`PATH` of the socket of the agent to ask, its --probe-socket")
}

func (o *probeOptions) Validate(args []string) error {
	var errs []error
	if o.socket == "" {
		errs = append(errs, command.FlagError("probe-socket", o.socket, "must not be empty"))
	}
	if len(args) != 1 || !slices.Contains(slices.Concat(healthEndpoints, printedEndpoints), args[0]) {
		return errors.Join(append(errs, fmt.Errorf("arguments %q: must be livez, readyz, metrics or table", args))...)
	}
	o.endpoint = args[0]
	return errors.Join(errs...)
}

func (o *probeOptions) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out := io.Discard
	if slices.Contains(printedEndpoints, o.endpoint) {
		out = os.Stdout
	}
	return serve.Probe(ctx, o.socket, o.endpoint, out)
}
