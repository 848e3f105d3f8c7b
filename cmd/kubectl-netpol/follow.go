package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// followAll prints what agents decide until the command is interrupted. It names agents
// that do not answer or have ended, and continues with the others.
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

// followOne calls yield with the records of one agent. The first one must arrive in time.
func followOne(ctx context.Context, pod *corev1.Pod, run runner, command []string, yield func(*flows.Record) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(agentTimeout, func() { cancel(noAnswer(agentTimeout)) })
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

// followWidths are the column widths in characters: later rows are not known yet, and must not
// move the columns. Longer text is cut. The columns are time, node, source, destination, port,
// verdict, policy and packets. A last column, audit, takes the rest of the line.
var followWidths = []int{8, 16, 32, 32, 10, 7, 40, 7}

// followPrinter prints records as they arrive. Its methods may be called from any
// goroutine.
type followPrinter struct {
	out, errs io.Writer
	json      bool
	denials   bool // also print single packets

	mu     sync.Mutex
	header bool // already printed
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
		p.row(out, "TIME", "NODE", "FROM", "TO", "PORT", "VERDICT", "BY", "PACKETS", "AUDIT")
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

// row prints a line.
func (p *followPrinter) row(w io.Writer, cells ...string) {
	line := ""
	for i, cell := range cells {
		cell = printable.Text(cell)
		if i < len(followWidths) {
			cell = pad(cut(cell, followWidths[i]), followWidths[i]+2)
		}
		line += cell
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// cut returns text with at most width characters, without some of its middle: names that are alike
// differ at their ends.
func cut(text string, width int) string {
	all := []rune(text)
	if len(all) <= width {
		return text
	}
	end := (width - 1) / 2
	return string(all[:width-1-end]) + "…" + string(all[len(all)-end:])
}

// ended says that an agent has no more records.
func (p *followPrinter) ended(pod *corev1.Pod, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.errs, "No more flows of node %s: %s/%s: %s\n", pod.Spec.NodeName, pod.Namespace, pod.Name, printable.Text(err.Error()))
}
