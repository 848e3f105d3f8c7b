package links

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

const (
	// minInterval bounds how often everything is read while pods come and go. A
	// new link is checked until it was read.
	minInterval = 100 * time.Millisecond
	// retryInterval is the time after which a failed reading is tried again.
	retryInterval = time.Second
	// maxInterval is how long a change whose notification was lost goes unnoticed.
	maxInterval = time.Minute
)

var (
	errEmptyPattern = errors.New("the name of an interface is empty")
	errNotRead      = errors.New("interfaces and routes were not read yet")
)

// Config says what a Watcher does.
type Config struct {
	// Exempt are names of interfaces, or patterns of path.Match, that are taken
	// for uplinks whatever is behind them.
	Exempt []string
	// Changed is called after interfaces or routes were read. It may be nil.
	Changed func()
}

// kernel is where links are read from.
type kernel interface {
	// read returns all links of the network namespace.
	read() (Links, error)
	// watch calls changed after each change until ctx ends or an error.
	watch(ctx context.Context, changed func()) error
}

// Watcher keeps the links of the node. Its methods may be called from any
// goroutine; Run once.
type Watcher struct {
	cfg    Config
	kernel kernel
	runner *runner.Runner

	mu     sync.Mutex
	links  Links // nil before they were read
	health error
}

// New returns a Watcher that has read nothing yet.
func New(cfg Config) (*Watcher, error) {
	for _, p := range cfg.Exempt {
		if err := CheckPattern(p); err != nil {
			return nil, fmt.Errorf("links: Exempt %q: %w", p, err)
		}
	}
	return newWatcher(cfg, rtnetlink{}), nil
}

func newWatcher(cfg Config, k kernel) *Watcher {
	w := &Watcher{cfg: cfg, kernel: k, health: errNotRead}
	w.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   maxInterval,
	}, w.sync)
	return w
}

// Run follows changes until ctx ends. What was read last stays known while
// nothing can be read.
func (w *Watcher) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "links")
	ctx = klog.NewContext(ctx, logger)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			err := w.kernel.watch(ctx, w.runner.Poke)
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "Changes of interfaces and routes cannot be followed, will retry", "after", retryInterval)
			w.runner.Poke() // what was missed is read
			select {
			case <-ctx.Done():
			case <-time.After(retryInterval):
			}
		}
	})
	w.runner.Poke()
	w.runner.Run(ctx)
	wg.Wait()
	return nil
}

// Read reads the links once, before Run.
func (w *Watcher) Read() error {
	links, err := w.kernel.read()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.health = err; err == nil {
		w.links = links
	}
	return err
}

func (w *Watcher) sync(ctx context.Context) error {
	if err := w.Read(); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Interfaces and routes were read")
	if w.cfg.Changed != nil {
		w.cfg.Changed()
	}
	return nil
}

// Healthy returns nil when the last reading succeeded.
func (w *Watcher) Healthy() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

// Uplinks returns, in order, the names of the interfaces that are not known to
// lead to pods; local reports whether an address is one of this node's pods. The
// second result is false while nothing is known.
func (w *Watcher) Uplinks(local func(netip.Addr) bool) ([]string, bool) {
	w.mu.Lock()
	links := w.links
	w.mu.Unlock()
	return links.uplinks(local, w.cfg.Exempt), links != nil
}

// TunnelPorts returns, in order, the UDP ports at which the node's tunnel devices
// take packets in.
func (w *Watcher) TunnelPorts() []uint16 {
	w.mu.Lock()
	links := w.links
	w.mu.Unlock()
	return links.tunnelPorts()
}
