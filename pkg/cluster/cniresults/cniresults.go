// Package cniresults learns the addresses of this node's pods from the results of network
// plugins that libcni caches for containerd and CRI-O. A result is written when a pod's
// sandbox has its network, before any container of the pod runs; the pod's status gets the
// addresses only seconds later. The package knows files and addresses, but not which pods
// exist.
package cniresults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// DefaultDir is where libcni keeps its cache.
const DefaultDir = "/var/lib/cni/results"

const (
	// reread is how often the folder is read without a notification: notifications may be
	// lost, or the folder's parent may not exist.
	reread = 10 * time.Second
	// logEvery is the least time between two lines about files that are ignored.
	logEvery = 10 * time.Second
)

// Sandbox is the network that the node created for a pod.
type Sandbox struct {
	Namespace, Name, UID string
	Container            string // the ID of the sandbox
	Addrs                []netip.Addr
	// Links are the interfaces of the node that lead to the sandbox. Some plugins name none.
	Links []string
	// Written is when the newest of its files was written, by the clock of that time.
	Written time.Time
}

func (s Sandbox) equal(o Sandbox) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.UID == o.UID && s.Container == o.Container && slices.Equal(s.Addrs, o.Addrs) &&
		slices.Equal(s.Links, o.Links) && s.Written.Equal(o.Written)
}

// Config configures a Cache.
type Config struct {
	// Dir is the folder of libcni's results. It may be missing, and may appear later.
	Dir string
	// Changed is called with all sandboxes in the folder, the newest first, initially and
	// after each change. They may include leftovers of deleted sandboxes, and after the clock
	// was set back, leftovers may come first. It is called from
	// one goroutine and must not modify the slice.
	Changed func([]Sandbox)
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Dir) {
		errs = append(errs, fmt.Errorf("Dir %q is not an absolute path", c.Dir))
	}
	if c.Changed == nil {
		errs = append(errs, errors.New("Changed is nil"))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Cache follows the folder.
type Cache struct {
	cfg     Config
	metrics *metrics

	// Only Read and Run use these.
	folder    folder
	published []Sandbox
	works     bool // sandboxes were found
	logAt     time.Time

	mu  sync.Mutex
	err error // of the last reading
}

// New returns a Cache. It starts nothing.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("CNI cache: %w", err)
	}
	cfg.Dir = filepath.Clean(cfg.Dir)
	return &Cache{cfg: cfg, metrics: newMetrics(cfg.Registerer), folder: folder{path: cfg.Dir}, err: errors.New("not read yet")}, nil
}

// Healthy returns the error of the last reading of the folder.
func (c *Cache) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Read reads the folder once before Run, so that its sandboxes are known first.
func (c *Cache) Read(ctx context.Context) { c.read(named(ctx)) }

func named(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "cniresults"))
}

// Run reads the folder, and rereads it after changes, until ctx ends. Without notifications
// by the system it reads the folder every ten seconds.
func (c *Cache) Run(ctx context.Context) error {
	ctx = named(ctx)
	var events chan fsnotify.Event
	var lost chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).Error(err, "No notifications of changed files", "readEvery", reread)
	} else {
		defer notify.Close()
		events, lost = notify.Events, notify.Errors
	}
	for {
		// The watch is added before the folder is read, so that no change is missed. It is
		// added each time, because a watch ends when its folder is removed.
		if notify != nil {
			_ = notify.Add(filepath.Dir(c.cfg.Dir)) // for a folder that appears later
			_ = notify.Add(c.cfg.Dir)
		}
		c.read(ctx)
		if !c.wait(ctx, events, lost) {
			return nil
		}
	}
}

// wait returns true when the folder must be read again, false when ctx has ended.
func (c *Cache) wait(ctx context.Context, events <-chan fsnotify.Event, lost <-chan error) bool {
	timer := time.NewTimer(reread)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-lost: // too many at once
			return true
		case event := <-events:
			if event.Name == c.cfg.Dir || filepath.Dir(event.Name) == c.cfg.Dir {
				drain(events)
				return true
			}
		}
	}
}

// drain discards events that arrived with the handled one.
func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case <-events:
		default:
			return
		}
	}
}

// read reads the folder and publishes changes.
func (c *Cache) read(ctx context.Context) {
	err := c.folder.read(func(f *fault) { c.ignored(ctx, f) })
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	now := c.folder.sandboxes()
	c.report(ctx, len(now) > 0, err)
	if c.published == nil || !slices.EqualFunc(c.published, now, Sandbox.equal) {
		c.published = now
		c.cfg.Changed(now)
	}
}

// ignored logs a fault, at most one per logEvery.
func (c *Cache) ignored(ctx context.Context, f *fault) {
	if now := time.Now(); now.After(c.logAt) {
		c.logAt = now.Add(logEvery)
		klog.FromContext(ctx).Error(f, "File of the CNI cache is ignored")
	}
}

// report logs where addresses of new pods come from, initially and when that changes.
func (c *Cache) report(ctx context.Context, works bool, err error) {
	c.metrics.setSource(works)
	if c.published != nil && works == c.works {
		return
	}
	c.works = works
	logger := klog.FromContext(ctx)
	if works {
		logger.Info("Addresses of new pods are known when their sandboxes are made", "source", sourceCache, "dir", c.cfg.Dir)
		return
	}
	logger.Info("Addresses of new pods are known when their status has them: the CNI cache has no pods", "source", sourceStatus, "dir", c.cfg.Dir, "err", err)
}
