// Package resolvers finds out which DNS resolvers a node's pods ask: the
// cluster's DNS Service and the pods behind it, and the nameservers of the node.
// It knows addresses and ports; what is done with them is for others to know.
package resolvers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

const (
	// minInterval lets the changes of a rollout share a run.
	minInterval = time.Second
	// retryInterval is for a resolv.conf that cannot be read.
	retryInterval = 10 * time.Second
	// maxInterval is how often resolv.conf is read.
	maxInterval = 30 * time.Second
)

// Config says where to look.
type Config struct {
	// Only are all the resolvers there are. None look for them.
	Only []netip.AddrPort
	// Client reads the cluster's DNS Service. Nil looks at ResolvConf alone.
	Client kubernetes.Interface
	// ResolvConf is the path of the node's resolv.conf(5).
	ResolvConf string
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate names every field that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.ResolvConf == "" {
		errs = append(errs, errors.New("ResolvConf is empty"))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Finder keeps looking for resolvers.
type Finder struct {
	only       []netip.AddrPort
	resolvConf string
	service    *service // nil without a cluster
	publish    func([]netip.AddrPort)
	metrics    *metrics
	runner     *runner.Runner

	// Of find alone.
	nameservers []netip.AddrPort // when resolv.conf was last read
	published   []netip.AddrPort // nil before the first time
}

// New returns a Finder that hands what it finds to publish, in ascending order,
// at first and whenever it changes. publish is called from one goroutine and
// must not change the slice.
func New(cfg Config, publish func([]netip.AddrPort)) (*Finder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("resolvers: %w", err)
	}
	f := &Finder{only: cfg.Only, resolvConf: cfg.ResolvConf, publish: publish, metrics: newMetrics(cfg.Registerer)}
	f.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   maxInterval,
	}, f.find)
	if cfg.Client != nil && len(cfg.Only) == 0 {
		f.service = newService(cfg.Client, f.runner.Poke)
	}
	return f, nil
}

// Run looks for resolvers until ctx ends. Nothing waits for the cluster: a
// Service that cannot be read is told once, and the rest goes on without it.
func (f *Finder) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "resolvers"))
	if f.service != nil {
		f.service.start(ctx)
		defer f.service.wait()
	}
	f.runner.Poke()
	f.runner.Run(ctx)
	return nil
}

// find is one run of the runner.
func (f *Finder) find(ctx context.Context) error {
	if len(f.only) > 0 {
		f.set(ctx, sorted(f.only))
		return nil
	}
	err := f.readResolvConf()
	found := slices.Clone(f.nameservers)
	if f.service != nil {
		found = append(found, f.service.resolvers()...)
	}
	f.set(ctx, sorted(found))
	return err
}

// readResolvConf reads the node's nameservers. Those of last time stay when it
// cannot; a file that does not exist names none.
func (f *Finder) readResolvConf() error {
	b, err := os.ReadFile(f.resolvConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.nameservers = parseResolvConf(string(b))
	return nil
}

func (f *Finder) set(ctx context.Context, resolvers []netip.AddrPort) {
	if f.published != nil && slices.Equal(f.published, resolvers) {
		return
	}
	klog.FromContext(ctx).V(2).Info("Resolvers found", "resolvers", resolvers)
	f.metrics.resolvers.Set(float64(len(resolvers)))
	f.published = resolvers
	f.publish(resolvers)
}

// sorted returns the resolvers in ascending order, each once, and never nil.
func sorted(resolvers []netip.AddrPort) []netip.AddrPort {
	resolvers = append([]netip.AddrPort{}, resolvers...)
	slices.SortFunc(resolvers, netip.AddrPort.Compare)
	return slices.Compact(resolvers)
}
