package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/printable"
)

// followAll prints what agents decide until the command is interrupted. An agent that
// does not answer, or not any more, is named; the others go on.
func (f *flowsOptions) followAll(cmd *cobra.Command, command []string) error {
	agents, run, err := f.find(cmd.Context())
	if err != nil {
		return err
	}
	printer := &followPrinter{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), json: f.output == "json", denials: f.denied}
	var group sync.WaitGroup
	for i := range agents {
		group.Go(func() {
			if err := followOne(cmd.Context(), &agents[i], run, command, printer.print); cmd.Context().Err() == nil {
				printer.ended(&agents[i], err)
			}
		})
	}
	group.Wait()
	if cmd.Context().Err() != nil {
		return nil
	}
	return errors.New("no agent answers any more")
}

// followOne calls yield with the records of one agent. Its first one has to come in time.
func followOne(ctx context.Context, pod *corev1.Pod, run runner, command []string, yield func(*flows.Record) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(agentTimeout, func() { cancel(errNoAnswer) })
	defer timer.Stop()
	err := stream(ctx, pod, run, command, func(r *flows.Record) error {
		timer.Stop()
		return yield(r)
	})
	if err == nil {
		err = errors.New("the command in the pod has ended")
	}
	return err
}

// followWidths are the widths of columns at first, in characters: what is to come is not
// known. The columns are time, node, source, destination, port, verdict, policy, count and
// audit.
var followWidths = []int{8, 10, 20, 20, 8, 7, 30, 6, 0}

// followPrinter prints records as they come. Its methods may be called from any goroutine.
type followPrinter struct {
	out, errs io.Writer
	json      bool
	denials   bool // single packets, too

	mu     sync.Mutex
	header bool // is printed
	widths []int
}

func (p *followPrinter) print(r *flows.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		return flows.Encode(p.out, []flows.Record{*r})
	}
	out := bufio.NewWriter(p.out)
	if !p.header {
		p.header = true
		p.row(out, "TIME", "NODE", "FROM", "TO", "PORT", "VERDICT", "BY", "COUNT", "AUDIT")
	}
	switch {
	case r.Type == flows.TypeFlow:
		p.row(out, r.Last.Local().Format(time.TimeOnly), r.Node, flowEnd(r, r.Source), flowEnd(r, r.Destination), portName(r), r.Verdict,
			decider(&r.Decision), fmt.Sprint(r.Count), auditName(r.Audit))
	case r.Type == flows.TypeDenial && p.denials:
		from := netip.AddrPortFrom(r.Source.Address, r.Source.Port).String()
		p.row(out, r.Time.Local().Format(time.TimeOnly), r.Node, from, endName(r.Destination), portName(r), r.Verdict,
			decider(&r.Decision), "packet", auditName(r.Audit))
	}
	return out.Flush()
}

// row prints a line. Columns are as wide as they were at most until now.
func (p *followPrinter) row(w io.Writer, cells ...string) {
	if p.widths == nil {
		p.widths = slices.Clone(followWidths)
	}
	line := ""
	for i, cell := range cells {
		cell = printable.Text(cell)
		p.widths[i] = max(p.widths[i], utf8.RuneCountInString(cell))
		line += pad(cell, p.widths[i]+2)
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// ended says that there are no more records of an agent.
func (p *followPrinter) ended(pod *corev1.Pod, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.errs, "No more flows of node %s: %s/%s: %s\n", pod.Spec.NodeName, pod.Namespace, pod.Name, printable.Text(err.Error()))
}
