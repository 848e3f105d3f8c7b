// Command apiload measures what the watches of many agents cost a real API server with etcd: its
// CPU time, memory and sent bytes while pods change, with agents that watch all pods and then with
// agents that watch needed pods. The cluster comes from tests/speed/scale/model, and its pods go
// through real API operations: they are created, bound, get a status, and are deleted.
//
// An agent consists only of its watches, made by the agent's own code, which count and drop what
// they receive. They run in this process, on the same machine as the server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

// options are the flags.
type options struct {
	model.Config
	rate       int
	during     time.Duration
	maxWatches int
	lists      int
}

func main() {
	var o options
	flag.IntVar(&o.Nodes, "nodes", 500, "nodes, with an agent on each")
	flag.IntVar(&o.Pods, "pods", 20_000, "pods in the cluster")
	flag.IntVar(&o.Namespaces, "namespaces", 267, "namespaces in the cluster")
	flag.BoolVar(&o.Zipf, "zipf", false, "sizes of namespaces are proportional to 1, 1/2, 1/3, …, and large ones have policies by application")
	flag.IntVar(&o.rate, "rate", 20, "changes of pods each second")
	flag.DurationVar(&o.during, "during", time.Minute, "how long each way is measured")
	flag.IntVar(&o.maxWatches, "max-pod-watches", clusterwatch.MaxNeededWatches, "the most watches of pods of other nodes that an agent needs at a time")
	flag.IntVar(&o.lists, "lists", 20, "how many of the agents list what they watch; the others watch changes alone")
	flag.Parse()
	o.ByLabel = o.Zipf
	// Connections are slow, not dead, if this process and the server share a machine.
	for _, name := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, "60")
		}
	}
	klog.SetLogger(logr.Discard()) // failed requests are counted
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := o.run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "apiload:", err)
		os.Exit(1)
	}
}

// way is how agents watch pods.
type way struct {
	name    string
	watches func(c *model.Cluster, node int, pods []model.Pod) []model.Watch // nil without agents
}

func (o options) ways() []way {
	return []way{
		{"no agents", nil},
		{"all pods", func(*model.Cluster, int, []model.Pod) []model.Watch { return []model.Watch{model.All} }},
		{"needed pods", func(c *model.Cluster, node int, pods []model.Pod) []model.Watch {
			return c.Needed(node, pods, o.maxWatches)
		}},
	}
}

// run measures all ways in one cluster and prints a table.
func (o options) run(ctx context.Context, out io.Writer) error {
	all, err := o.measureAll(ctx, out)
	if err != nil {
		return err
	}
	return print(out, all)
}

// measureAll measures all ways in one cluster.
func (o options) measureAll(ctx context.Context, out io.Writer) (all []figures, err error) {
	plane, err := controlplane.Start(ctx, controlplane.Config{Release: servers.Newest, Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	c, err := newCluster(o.Config, plane.Admin())
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := c.fill(ctx); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	fmt.Fprintf(out, "%d nodes, %d pods, %d namespaces, %d policies, created in %.0f s; %d changes a second for %s\n",
		o.Nodes, o.Pods, o.Namespaces, c.policies, time.Since(began).Seconds(), o.rate, o.during)
	for _, w := range o.ways() {
		f, err := o.measure(ctx, plane, c, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %.4g\n", f.way, f.values)
		all = append(all, f)
	}
	return all, nil
}

// print prints the figures of all ways, and the last one as a share of the one before.
func print(out io.Writer, all []figures) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\t")
	for _, f := range all {
		fmt.Fprintf(t, "%s\t", f.way)
	}
	fmt.Fprint(t, "share\t\n")
	for i, row := range rows {
		fmt.Fprintf(t, "%s\t", row)
		for _, f := range all {
			fmt.Fprintf(t, "%.4g\t", f.values[i])
		}
		before, last := all[len(all)-2].values[i], all[len(all)-1].values[i]
		fmt.Fprintf(t, "%.1f%%\t\n", 100*last/before)
	}
	return t.Flush()
}
