package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/serve"
)

const (
	flowsName = "flows"
	// flowsTimeout bounds one answer of the agent.
	flowsTimeout = 20 * time.Second
	// followInterval is how often the agent is asked for changes.
	followInterval = time.Second
)

// flowsOptions are the flags of the command flows.
type flowsOptions struct {
	socket string
	filter flows.Filter
	follow bool
	in     *os.File
	out    io.Writer
}

func newFlowsOptions() *flowsOptions {
	return &flowsOptions{socket: serve.DefaultSocket, in: os.Stdin, out: os.Stdout}
}

func (o *flowsOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.socket, "probe-socket", o.socket, "`PATH` of the socket of the agent to read, its --probe-socket")
	fs.StringVar(&o.filter.Namespace, "namespace", "", "only flows from or to pods of this namespace")
	fs.StringVar(&o.filter.Pod, "pod", "", "only flows from or to pods of this name")
	fs.BoolVar(&o.filter.Denied, "denied", false, "only what was denied")
	fs.BoolVar(&o.filter.Audited, "audit", false, "only what audited policies would decide otherwise")
	fs.BoolVar(&o.filter.Rules, "rules", false, "what each rule decided since the agent was started, in the place of flows; alone")
	fs.BoolVar(&o.follow, "follow", false, "print what is decided from now on, until interrupted: a flow each time its count has changed, at most once a second. If the standard input is a pipe, as with kubectl exec -i, it ends with that")
}

func (o *flowsOptions) Validate(args []string) error {
	var errs []error
	if o.socket == "" {
		errs = append(errs, command.FlagError("probe-socket", o.socket, "must not be empty"))
	}
	if err := o.filter.Check(); err != nil || o.filter.Rules && o.follow {
		errs = append(errs, command.FlagError("rules", o.filter.Rules, "not with --namespace, --pod, --denied, --audit or --follow"))
	}
	if len(args) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
	}
	return errors.Join(errs...)
}

// run prints the agent's records and, if it follows them, further changes.
func (o *flowsOptions) Run(ctx context.Context) error {
	records, err := o.read(ctx)
	if err != nil || !o.follow {
		return errors.Join(err, flows.Encode(o.out, records))
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	whenPipeEnds(o.in, end)
	records = records[:min(1, len(records))] // the one of the agent
	for ctx.Err() == nil {
		if err := flows.Encode(o.out, records); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
		if records, err = o.readChanges(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// whenPipeEnds calls end when in is a pipe and is closed. A command in a container notices
// only by this that its client has gone: it gets no signal, and its writes succeed.
func whenPipeEnds(in *os.File, end func()) {
	if info, err := in.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error also means the end
		end()
	}()
}

// read returns the records that the filter selects. The next call returns those that changed
// since.
func (o *flowsOptions) read(ctx context.Context) ([]flows.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, flowsTimeout)
	defer cancel()
	answer, err := serve.Get(ctx, o.socket, flows.Path+"?"+o.filter.Values().Encode())
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	var records []flows.Record
	err = flows.Decode(answer, func(r *flows.Record) error {
		if r.Type == flows.TypeAgent {
			o.filter.After = r.Cursor
		}
		records = append(records, *r)
		return nil
	})
	return records, err
}

// readChanges returns nothing if only the agent's record has changed.
func (o *flowsOptions) readChanges(ctx context.Context) ([]flows.Record, error) {
	records, err := o.read(ctx)
	if len(records) == 1 {
		records = nil
	}
	return records, err
}
