// The bench measures the cost of a decision about new flows and connections that cross a
// node: accepted by a rule, accepted by loops that read the kernel's queue, and decided by
// the agent with few and with many policies. All are measured in rounds, one after the
// other, so that other load of the machine affects all of them alike.
//
// It prints results (package results) and needs root, nft, ip and nsenter. Nothing leaves
// its network namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// The main thread stays in its namespace, see load.Inside.
func init() { runtime.LockOSThread() }

func main() {
	var o options
	flag.StringVar(&o.agent, "agent", "bin/kube-network-policies", "path of the agent")
	flag.StringVar(&o.floor, "floor", "bin/floor", "path of the least loop that accepts all packets of queues")
	flag.StringVar(&o.other, "other", "", "path of kube-network-policies v1.1.1 to compare with; empty leaves it out")
	flag.StringVar(&o.callback, "callback", "bin/callback", "path of the callback loop to compare with")
	flag.IntVar(&o.rounds, "rounds", 7, "how often each is measured")
	flag.BoolVar(&o.short, "short", false, "measure less of everything, as a smoke test")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	done := make(chan error)
	go func() { done <- run(ctx, os.Stdout, o) }()
	err := <-done
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	agent, floor, callback, other string
	rounds                        int
	short                         bool
}

// run makes all measurements and prints them on out.
func run(ctx context.Context, out io.Writer, o options) (err error) {
	if err := lab.Check(); err != nil {
		return err
	}
	load, err := machineLoad()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p := o.plan()
	ways, err := p.ways(ctx, o, dir)
	if err != nil {
		return err
	}
	setups, err := setUp(ctx, ways)
	defer func() {
		for _, s := range setups {
			err = errors.Join(err, s.close())
		}
	}()
	if err != nil {
		return err
	}
	limit, err := connectionLimit()
	if err != nil {
		return err
	}
	if err := describe(out, load, limit); err != nil {
		return err
	}
	for range o.rounds {
		if err := round(ctx, out, setups, p.amounts.within(limit)); err != nil {
			return err
		}
	}
	return nil
}

// round makes every measurement of every setup once.
func round(ctx context.Context, out io.Writer, setups []*setup, a amounts) error {
	for _, m := range measurements {
		for _, s := range setups {
			if s.unsupported || !m.appliesTo(s.way) {
				continue
			}
			line, err := m.do(ctx, s, a)
			if err = errors.Join(err, ctx.Err()); err != nil {
				return fmt.Errorf("%s/%s: %w", m.name, s.name, err)
			}
			line.Name = m.name + "/" + s.name
			fmt.Fprintln(out, line)
		}
	}
	return nil
}
