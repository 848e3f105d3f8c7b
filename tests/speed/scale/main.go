// The scale test measures an agent in a large cluster. A fake API server (package
// apiserver) serves the objects of thousands of nodes to the agent's binary, which runs in
// a network namespace, and changes them like busy clusters do. The effect of changes is
// observed with real packets: probes, each a new flow, that are allowed or denied because
// of a pod's label, a new pod or a policy.
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
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// The main thread stays in its namespace, see load.Inside.
func init() { runtime.LockOSThread() }

func main() {
	o := options{size: size{namespaces: 1000}}
	flag.StringVar(&o.agent, "agent", "../../bin/kube-network-policies", "path of the agent, which make build builds")
	flag.IntVar(&o.size.pods, "pods", 100000, "pods in the cluster")
	flag.IntVar(&o.size.policies, "policies", 10000, "policies in the cluster")
	flag.StringVar(&o.size.shape, "shape", "spread", `where the policies are: "spread" over all namespaces or "all" in the one of the server that is probed`)
	flag.IntVar(&o.rate, "rate", 1000, "changes of pods each second that may concern policies; a quarter as many that do not are added")
	flag.DurationVar(&o.during, "during", 20*time.Second, "how long CPU time and traffic are measured")
	flag.IntVar(&o.flips, "flips", 100, "changes of each kind whose latency is measured")
	flag.BoolVar(&o.lists, "lists", false, "serve no streamed lists, as API servers before Kubernetes 1.34")
	flag.BoolVar(&o.short, "short", false, "measure a small cluster for a short time, as a smoke test")
	heapOf := flag.String("heap-of", "", "print the heap of a process that holds the cluster of this kubeconfig, and nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	done := make(chan error)
	go func() {
		if *heapOf != "" {
			done <- printHeap(ctx, *heapOf)
			return
		}
		done <- run(ctx, os.Stdout, o)
	}()
	err := <-done
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	agent        string
	size         size
	rate         int
	during       time.Duration
	flips        int
	lists, short bool
}

// validate reports every flag with an invalid value.
func (o options) validate() error {
	var errs []error
	if o.size.pods <= perNode {
		errs = append(errs, fmt.Errorf("-pods=%d: must be more than the %d of the agent's own node", o.size.pods, perNode))
	}
	if o.size.policies < 0 {
		errs = append(errs, fmt.Errorf("-policies=%d: is negative", o.size.policies))
	}
	if o.size.shape != "spread" && o.size.shape != "all" {
		errs = append(errs, fmt.Errorf("-shape=%q: must be spread or all", o.size.shape))
	}
	if o.rate < 1 || o.flips < 1 || o.during <= 0 {
		errs = append(errs, errors.New("-rate, -flips and -during must be positive"))
	}
	if o.flips%2 != 0 {
		errs = append(errs, fmt.Errorf("-flips=%d: must be even, so that each kind leaves things as they were", o.flips))
	}
	return errors.Join(errs...)
}

// shortened returns options that measure less of everything.
func (o options) shortened() options {
	if o.short {
		o.size.pods, o.size.policies = min(o.size.pods, 1000), min(o.size.policies, 1000)
		o.rate, o.during, o.flips = min(o.rate, 100), min(o.during, time.Second), min(o.flips, 4)
	}
	return o
}

// run measures everything and prints it on out.
func run(ctx context.Context, out io.Writer, o options) error {
	o = o.shortened()
	if err := errors.Join(o.validate(), lab.Check()); err != nil {
		return err
	}
	return o.measured(ctx, out, o.size.fill, func(ctx context.Context, m *measurement) error {
		for _, step := range []func(context.Context) error{m.heap, m.start, m.load, m.revoking, m.changing, m.calm, m.busy} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// measured runs steps in an environment of their own.
func (o options) measured(ctx context.Context, out io.Writer, fill func(*apiserver.Server, *corev1.Node) error, steps func(context.Context, *measurement) error) (err error) {
	e, err := newEnvironment(ctx, fill, !o.lists)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	m := &measurement{environment: e, options: o, out: out, client: e.api.Client()}
	if err := steps(ctx, m); err != nil {
		if m.agent != nil {
			err = fmt.Errorf("%w; the agent's log:\n%s", err, m.agent.Log())
		}
		return err
	}
	return nil
}
