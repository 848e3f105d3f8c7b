// Conformance runs the conformance suites of the network policy API, as their
// authors have released them, and counts. Each runs in a process of its own with
// the libraries of its release, and sees nothing of this module but an API server.
//
//	go run .
//	go run . -networks netns -agent ../../../bin/kube-network-policies
//	go run . -suites v0.3.0 -clusters IPv6-beside -run Gress
//
// The exit status is 1 when anything has failed or was skipped.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/tests/cluster/conformance/cluster"
	"sigs.k8s.io/kube-network-policies/tests/packets/backend"
)

// options are the flags.
type options struct {
	networks string
	agent    string
	suites   string
	clusters string
	run      string
	silence  time.Duration
	binaries string
	all      bool
	report   string
	version  string
	home     string
	proof    string
}

func main() {
	var o options
	flag.StringVar(&o.suites, "suites", "v0.1.7,v0.2.0,v0.3.0", "releases of the suite, separated by commas")
	flag.StringVar(&o.clusters, "clusters", names(clusters), "clusters to run on, separated by commas")
	flag.StringVar(&o.networks, "networks", "compiled,oracle", "networks of their pods, separated by commas: "+names(networks))
	flag.StringVar(&o.agent, "agent", "", "netns: the agent's binary")
	flag.StringVar(&o.run, "run", "", "run only the tests whose name matches this regular expression")
	flag.DurationVar(&o.silence, "silence", 500*time.Millisecond, "how long a connection may be without an answer until it counts as denied")
	flag.StringVar(&o.binaries, "binaries", "", "a folder with the suites as test binaries, RELEASE.test; when empty they are built")
	flag.StringVar(&o.report, "report", "", "with one suite of v0.3.0 or later, cluster and network: a file for the report that network-policy-api collects")
	flag.StringVar(&o.version, "version", "", "with -report: the version of this project")
	flag.StringVar(&o.home, "home", "", "with -report: the page of the repository")
	flag.StringVar(&o.proof, "proof", "", "with -report: a link to the run that makes it")
	flag.BoolVar(&o.all, "v", false, "show the output of all suites, not only of failed ones")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// network is a cluster.Network that has an end.
type network interface {
	cluster.Network
	Close() error
}

// networks make what connects pods.
var networks = map[string]func(context.Context, options) (network, error){
	"compiled": func(context.Context, options) (network, error) {
		return newEvaluated(compiled(clusterstate.Compile)), nil
	},
	"oracle": func(context.Context, options) (network, error) { return newEvaluated(byOracle), nil },
	"netns":  func(ctx context.Context, o options) (network, error) { return newPackets(ctx, o.agent) },
	"netns-asking": func(ctx context.Context, o options) (network, error) {
		return newPackets(ctx, o.agent, "--remember-verdicts=0")
	},
	"netns-rejecting": func(ctx context.Context, o options) (network, error) {
		return newPackets(ctx, o.agent, backend.Reject)
	},
}

// clusters are the clusters that suites run on: the family of the pods' first address,
// and whether host-network pods run on the node of the pods of the same ordinal, so
// that some connections to nodes are to the client's own node, or on another one.
var clusters = map[string]cluster.Config{
	"IPv4-beside": {Family: corev1.IPv4Protocol},
	"IPv4-apart":  {Family: corev1.IPv4Protocol, HostNetworkApart: true},
	"IPv6-beside": {Family: corev1.IPv6Protocol},
	"IPv6-apart":  {Family: corev1.IPv6Protocol, HostNetworkApart: true},
}

func names[V any](from map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(from)), ",")
}

// run runs every suite on every cluster, all at the same time: most of what they
// do is to wait.
func run(ctx context.Context, o options) error {
	plays, err := choose(o)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	binaries, err := filepath.Abs(o.binaries)
	if err != nil {
		return err
	}
	if o.binaries == "" {
		binaries = folder
		for release := range strings.SplitSeq(o.suites, ",") {
			if err := build(ctx, release, binaries); err != nil {
				return err
			}
		}
	}
	var group sync.WaitGroup
	errs := make([]error, len(plays))
	for i, p := range plays {
		p.binary = binary(binaries, p.release)
		p.kubeconfig = filepath.Join(folder, fmt.Sprintf("%d.kubeconfig", i))
		group.Go(func() { errs[i] = p.run(ctx) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// choose returns what the options ask for.
func choose(o options) ([]play, error) {
	var plays []play
	for release := range strings.SplitSeq(o.suites, ",") {
		for name := range strings.SplitSeq(o.clusters, ",") {
			cfg, ok := clusters[name]
			if !ok {
				return nil, fmt.Errorf("-clusters: %q is none of %s", name, names(clusters))
			}
			for network := range strings.SplitSeq(o.networks, ",") {
				newNetwork := networks[network]
				if newNetwork == nil {
					return nil, fmt.Errorf("-networks: %q is none of %s", network, names(networks))
				}
				plays = append(plays, play{
					name: fmt.Sprintf("%s, %s, %s", release, name, network), release: release,
					cfg: cfg, newNetwork: newNetwork, options: o,
				})
			}
		}
	}
	return plays, nil
}
