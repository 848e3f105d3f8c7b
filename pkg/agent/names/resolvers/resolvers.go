// Package resolvers finds the DNS resolvers of a node's pods: the cluster's DNS Service and
// the pods behind it, and the nameservers of the node. It knows their addresses and ports,
// but not their use.
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

const (
	// minInterval coalesces the changes of a rollout.
	minInterval = time.Second
	// retryInterval is the pause after a resolv.conf could not be read.
	retryInterval = 10 * time.Second
	// maxInterval is how often resolv.conf is read.
	maxInterval = 30 * time.Second
)

// Cluster lists and watches the objects of a namespace that options select.
type Cluster interface {
	Selected(r schema.GroupVersionResource, namespace string, selecting metav1.ListOptions) cache.ListerWatcher
}

// Config configures a Finder.
type Config struct {
	// Only lists the resolvers. If it is not empty, the Finder looks for no other ones.
	Only []netip.AddrPort
	// Cluster reads the cluster's DNS Service. If nil, only ResolvConf is read.
	Cluster Cluster
	// ResolvConf is the path of the node's resolv.conf(5).
	ResolvConf string
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate reports every invalid field.
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

// Finder follows the changes of resolvers.
type Finder struct {
	only       []netip.AddrPort
	resolvConf string
	service    *service // nil without a cluster
	publish    func([]netip.AddrPort)
	metrics    *metrics
	runner     *runner.Runner

	// Only find uses these.
	nameservers []netip.AddrPort // of the last readable resolv.conf
	published   []netip.AddrPort // nil before the first publish
}

// New returns a Finder that calls publish with the resolvers, in ascending order, initially
// and whenever they change. publish is called from one goroutine and must not modify the
// slice.
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
	if cfg.Cluster != nil && len(cfg.Only) == 0 {
		f.service = newService(cfg.Cluster, f.runner.Poke)
	}
	return f, nil
}

// Run looks for resolvers until ctx ends. It does not wait for the cluster: if a Service
// cannot be read, this is logged once and the other resolvers are published.
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

// find is called by the runner.
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

// readResolvConf reads the node's nameservers. On an error it keeps the previous ones; a
// missing file has none.
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
