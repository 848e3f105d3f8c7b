package links

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

const (
	// minInterval bounds how often everything is read while pods come and go. Until a new
	// link is read, the sources of its packets are checked.
	minInterval = 100 * time.Millisecond
	// retryInterval is the time between a failed read and the next.
	retryInterval = time.Second
	// maxInterval bounds how long a change goes unnoticed if its notification is lost.
	maxInterval = time.Minute
)

var (
	errEmptyPattern = errors.New("empty interface name")
	errNotRead      = errors.New("interfaces and routes are not read yet")
)

// Config configures a Watcher.
type Config struct {
	// Exempt are the names or patterns (path.Match) of interfaces that always count as uplinks.
	Exempt []string
	// Changed is called after each read. It may be nil.
	Changed func()
}

// kernel is rtnetlink, except in tests.
type kernel interface {
	// read returns all links of the network namespace.
	read() (Links, error)
	// watch calls changed after each change, until ctx ends or an error occurs.
	watch(ctx context.Context, changed func()) error
}

// Watcher tracks the links of the node. Its methods may be called from any goroutine, Run
// only once.
type Watcher struct {
	cfg    Config
	kernel kernel
	runner *runner.Runner

	known  chan struct{} // closed after the first read
	mu     sync.Mutex
	links  Links // nil before the first read
	health error
}

// New returns a Watcher that has not read anything yet.
func New(cfg Config) (*Watcher, error) {
	for _, p := range cfg.Exempt {
		if err := CheckPattern(p); err != nil {
			return nil, fmt.Errorf("links: Exempt %q: %w", p, err)
		}
	}
	return newWatcher(cfg, &rtnetlink{}), nil
}

func newWatcher(cfg Config, k kernel) *Watcher {
	w := &Watcher{cfg: cfg, kernel: k, known: make(chan struct{}), health: errNotRead}
	w.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   maxInterval,
	}, w.sync)
	return w
}

// Run watches for changes until ctx ends. If reading fails, the links of the last
// successful read are kept.
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
			logger.Error(err, "Notifications of interfaces and routes failed, retrying", "after", retryInterval)
			w.runner.Poke() // read what was missed
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
	w.health = err
	if err != nil {
		return err
	}
	if w.links == nil {
		close(w.known)
	}
	w.links = links
	return nil
}

// Wait waits until the links were read once, or until ctx ends.
func (w *Watcher) Wait(ctx context.Context) {
	select {
	case <-w.known:
	case <-ctx.Done():
	}
}

func (w *Watcher) sync(ctx context.Context) error {
	if err := w.Read(); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Interfaces and routes read")
	if w.cfg.Changed != nil {
		w.cfg.Changed()
	}
	return nil
}

// latest returns the links of the last successful read, nil before the first.
func (w *Watcher) latest() Links {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.links
}

// Healthy returns nil if the last read succeeded.
func (w *Watcher) Healthy() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

// Names returns the sorted names of the uplinks, which are the interfaces that are not known to
// lead to pods, and of the bridges that connect pods. pods are the sorted addresses of this
// node's pods. known is false before the first successful read.
func (w *Watcher) Names(pods []netip.Addr) (uplinks, bridges []string, known bool) {
	links := w.latest()
	uplinks = links.uplinks(containedIn(pods), w.cfg.Exempt)
	return uplinks, links.bridges(pods, uplinks), links != nil
}

// Leads returns the interfaces that lead to some of pods, which are the sorted addresses of this
// node's pods, or may lead to a pod that is not known, and the indices of all interfaces. uplinks is the result of Names.
func (w *Watcher) Leads(pods []netip.Addr, uplinks []string) (leads []Lead, all []uint32) {
	links := w.latest()
	for index := range links {
		all = append(all, uint32(index))
	}
	return links.leads(pods, uplinks), all
}

// Destinations returns what the node sends through the interfaces with these indices, beyond pods,
// which are the sorted addresses of this node's pods. It includes more specific destinations of other
// interfaces. The most specific ones come first.
func (w *Watcher) Destinations(indices []uint32, pods []netip.Addr) []Destination {
	links := w.latest()
	return links.destinations(indices, pods)
}

// containedIn returns a function that reports whether an address is in addrs, which are sorted.
func containedIn(addrs []netip.Addr) func(netip.Addr) bool {
	return func(addr netip.Addr) bool {
		_, ok := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare)
		return ok
	}
}

// LeadsToPods reports whether the node sends to addr through an interface that leads to pods, not
// an uplink. pods are the sorted addresses of this node's pods.
func (w *Watcher) LeadsToPods(addr netip.Addr, pods []netip.Addr) bool {
	links := w.latest()
	link := links.linkTo(addr)
	return link != nil && !matches(link.Name, w.cfg.Exempt) && !links.isUplink(link, containedIn(pods))
}

// LeadsAway reports whether the node sends to addr through an uplink, by a route to a part of one of
// ranges, the node's pod ranges, or to all of it. pods are the sorted addresses of this node's pods.
func (w *Watcher) LeadsAway(addr netip.Addr, ranges []netip.Prefix, pods []netip.Addr) bool {
	links := w.latest()
	return links.leadsAway(addr, ranges, func(link *Link) bool {
		return matches(link.Name, w.cfg.Exempt) || links.isUplink(link, containedIn(pods))
	})
}

// LeadsElsewhere reports whether the routes of the node show that no pod of it has addr. It is false before
// the first successful read.
func (w *Watcher) LeadsElsewhere(addr netip.Addr) bool {
	links := w.latest()
	return links.leadsElsewhere(addr)
}

// OtherPorts returns the sorted names of the ports of all bridges except the given ones.
func (w *Watcher) OtherPorts(bridges []string) []string {
	links := w.latest()
	return links.otherPorts(bridges)
}

// OwnLink returns the name of the interface that leads to the pod with the addresses pod, and to
// no other address in pods. It is empty if there is none, because the pod is at a bridge, or
// because interfaces and routes are not read yet.
func (w *Watcher) OwnLink(pod, pods []netip.Addr) string {
	links := w.latest()
	return links.ownLink(pod, pods)
}

// LeadsToAny reports whether an interface other than the node's own leads to one of pods. known is
// false before the first successful read.
func (w *Watcher) LeadsToAny(pods []netip.Addr) (leads, known bool) {
	links := w.latest()
	return links.leadsToAny(pods), links != nil
}

// TunnelPorts returns the UDP ports on which the node's tunnel devices receive, sorted.
func (w *Watcher) TunnelPorts() []uint16 {
	links := w.latest()
	return links.tunnelPorts()
}
