package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/flows"
)

const (
	flowsName = "flows"
	// flowsTimeout bounds one answer of the agent.
	flowsTimeout = 20 * time.Second
)

// flowsOptions are the flags of the command flows.
type flowsOptions struct {
	socket string
	filter flows.Filter
	out    io.Writer
}

func newFlowsOptions() *flowsOptions {
	return &flowsOptions{socket: agent.DefaultSocket, out: os.Stdout}
}

func (o *flowsOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.socket, "probe-socket", o.socket, "`PATH` of the socket of the agent to read, its --probe-socket")
	fs.StringVar(&o.filter.Namespace, "namespace", "", "only flows from or to pods of this namespace")
	fs.StringVar(&o.filter.Pod, "pod", "", "only flows from or to pods of this name")
	fs.BoolVar(&o.filter.Denied, "denied", false, "only what was denied")
	fs.BoolVar(&o.filter.Audited, "audit", false, "only what audited policies would decide otherwise")
}

func (o *flowsOptions) validate(args []string) error {
	var errs []error
	if o.socket == "" {
		errs = append(errs, flagError("probe-socket", o.socket, "must not be empty"))
	}
	if len(args) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
	}
	return errors.Join(errs...)
}

// run prints the records of the agent as they are.
func (o *flowsOptions) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flowsTimeout)
	defer cancel()
	records, err := agent.Flows(ctx, o.socket, o.filter)
	if err != nil {
		return err
	}
	defer records.Close()
	_, err = io.Copy(o.out, records)
	return err
}
