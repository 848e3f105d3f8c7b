// The suite plays scenarios of policies, or a folder of manifests, on a
// backend, shows the tables that are not as they should be, and counts. Its exit
// status is 1 when anything was not as expected.
//
//	go run ./tests/netpol/suite -backend simulated
//	go run ./tests/netpol/suite -backend netns -run 'except|block'
//	go run ./tests/netpol/suite -backend netns -dir examples/shop -v
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
	"sigs.k8s.io/kube-network-policies/tests/netpol/netns"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/netpol/simulated"
)

// options are the flags.
type options struct {
	backend string
	dir     string
	run     string
	settle  time.Duration
	all     bool

	kubeconfig  string
	image       string
	viaServices bool
	families    string
	silent      bool
}

// errFailed says that something was not as expected. It has been shown.
var errFailed = errors.New("not as expected")

func main() {
	var o options
	flag.StringVar(&o.backend, "backend", "simulated", "what to play on: "+strings.Join(backendNames(), ", "))
	flag.StringVar(&o.dir, "dir", "", "play the pods, namespaces and policies of this folder instead of the scenarios; expected is what the evaluator says of them")
	flag.StringVar(&o.run, "run", "", "play only the scenarios whose name matches this regular expression")
	flag.DurationVar(&o.settle, "settle", 10*time.Second, "how long a change may take to be in force; what is not as expected by then fails")
	flag.BoolVar(&o.all, "v", false, "show all tables")
	flag.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "cluster: how to reach it")
	flag.StringVar(&o.image, "image", "registry.k8s.io/e2e-test-images/agnhost:2.59", "cluster: image of the pods, with the commands of agnhost")
	flag.BoolVar(&o.viaServices, "via-services", false, "cluster: reach every pod by a Service in front of it")
	flag.StringVar(&o.families, "families", "IPv4", "cluster: what pods have addresses of: IPv4, IPv6 or both, with a comma")
	flag.BoolVar(&o.silent, "silent-drops", false, "cluster: a denied connection that is refused, and not met with silence, fails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

// backends make what scenarios are played on.
var backends = map[string]func(context.Context, options) (netpol.Backend, error){
	"simulated": func(context.Context, options) (netpol.Backend, error) {
		return simulated.New(simulated.Compiled), nil
	},
	"oracle":  func(context.Context, options) (netpol.Backend, error) { return simulated.New(simulated.Oracle), nil },
	"netns":   func(ctx context.Context, _ options) (netpol.Backend, error) { return netns.New(ctx) },
	"cluster": newCluster,
}

func newCluster(ctx context.Context, o options) (netpol.Backend, error) {
	access, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, err
	}
	access.QPS, access.Burst = -1, 0 // one command for each cell
	cfg := cluster.Config{Image: o.image, ViaServices: o.viaServices, SilentDrops: o.silent}
	for family := range strings.SplitSeq(o.families, ",") {
		cfg.Families = append(cfg.Families, corev1.IPFamily(family))
	}
	return cluster.New(ctx, access, cfg)
}

func backendNames() []string {
	var names []string
	for name := range backends {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// run plays what the options say and shows it on out.
func run(ctx context.Context, out io.Writer, o options) (err error) {
	chosen, err := choose(ctx, o)
	if err != nil {
		return err
	}
	newBackend := backends[o.backend]
	if newBackend == nil {
		return fmt.Errorf("-backend %q is none of %s", o.backend, strings.Join(backendNames(), ", "))
	}
	backend, err := newBackend(ctx, o)
	if err != nil {
		return fmt.Errorf("start %s: %w", o.backend, err)
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	runner := netpol.Runner{Backend: backend, Settle: o.settle}
	summary := runner.PlayAll(ctx, chosen, func(r netpol.Result) {
		fmt.Fprint(out, r.Report(netpol.Unicode, o.all))
		if len(r.Unsupported) > 0 {
			fmt.Fprintf(out, "%s: not supported by this backend: %s\n", r.Scenario, strings.Join(r.Unsupported, ", "))
		}
	})
	fmt.Fprintf(out, "%s: %s\n", o.backend, &summary)
	if summary.Failed > 0 || ctx.Err() != nil {
		return errFailed
	}
	return nil
}

// choose returns the scenarios to be played.
func choose(ctx context.Context, o options) ([]netpol.Scenario, error) {
	if o.dir != "" {
		state, err := netpol.Load(os.DirFS(o.dir))
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", o.dir, err)
		}
		scenario, err := netpol.FolderScenario(ctx, o.dir, state, simulated.New(simulated.Compiled))
		return []netpol.Scenario{scenario}, err
	}
	name, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	chosen := slices.DeleteFunc(scenarios.All(), func(s netpol.Scenario) bool { return !name.MatchString(s.Name) })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %q matches no scenario", o.run)
	}
	return chosen, nil
}
