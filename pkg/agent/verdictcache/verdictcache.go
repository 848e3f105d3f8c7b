// Package verdictcache decides which verdicts the kernel remembers, so that it need not ask
// again about connections of a class, and removes exactly those whose decision a cluster
// change reverses. It knows neither packets nor nftables.
//
// # What the kernel remembers is known
//
// The kernel remembers that a class is allowed when it handles a verdict with the mark for
// it, within the system call that sends the verdict. Each class is recorded here before its
// verdict is given, and for longer than the kernel remembers it. So what the kernel
// remembers is always a subset of what is recorded.
//
// # Reversed verdicts are forgotten
//
// Changed is called once the new snapshot decides packets. It first waits until all verdicts
// of earlier snapshots are sent. From then on only decisions of the new snapshot can be
// recorded or remembered, so classes that it decides differently can be removed from the
// kernel and cannot come back. Denied classes are written by one goroutine, which evaluates
// them with the current snapshot and excludes Changed by a mutex.
package verdictcache

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// deniedFor is how long the kernel remembers a denied class.
	deniedFor = 20 * time.Second
	// slack is how much longer a class is recorded than the kernel remembers it: the kernel's
	// timeout starts when it handles the verdict, and runs by another clock.
	slack = 5 * time.Second

	// maxAllowed and maxDenied bound the recorded classes. The kernel's sets have this size
	// for each IP family.
	maxAllowed = 1 << 16
	maxDenied  = 1 << 14
	// sharePerAddress bounds the share of one address: 1/sharePerAddress of either.
	sharePerAddress = 8

	// allowedAfter is the number of packets after which an allowed class is remembered, so
	// that classes with one packet take no room.
	allowedAfter = 2
	// deniedAfter is the number of packets in recentDenials after which a denied class is
	// remembered. Each change of denied classes is an nftables transaction, which may collide
	// with those of other programs; allowed classes are added by rules on the packet path.
	deniedAfter   = 4
	recentDenials = 10 * time.Second
	// denyInterval is the least time between such transactions, and maxPending the most
	// classes that wait for one.
	denyInterval = time.Second
	maxPending   = 1024

	// countInterval is how often packets that the kernel decided are counted.
	countInterval = 5 * time.Second
	// A class that expires within countBefore is counted for the last time, and forgotten.
	countBefore = 2 * countInterval
	// sameTime is the accuracy of the time at which the kernel began to remember a class.
	sameTime = 500 * time.Millisecond
	// retryInterval is the pause before the kernel is tried again after an error.
	retryInterval = time.Second
	// timeout ends a request to a kernel that does not answer.
	timeout = 5 * time.Second
)

// Remembered is a class that the kernel remembers. It has no name of its own, so that a Kernel need
// not import this package.
type Remembered = struct {
	Class  packet.Class
	Denied bool
	// Packets is the number of packets of the class since the kernel remembers it. For an
	// allowed class it includes the packet that the agent decided.
	Packets uint64
	// Expires is the time until the kernel forgets the class.
	Expires time.Duration
}

// Kernel stores remembered verdicts.
type Kernel interface {
	// Missing returns what it lacks, nil if it can remember verdicts.
	Missing() error
	// Forget removes classes. Missing classes are no error.
	Forget(ctx context.Context, allowed, denied []packet.Class) error
	// ForgetAll removes all classes.
	ForgetAll(ctx context.Context) error
	// Deny adds denied classes for a duration. Classes that are already denied keep their
	// expiry.
	Deny(ctx context.Context, classes []packet.Class, d time.Duration) error
	// All calls yield with all classes, in no particular order.
	All(ctx context.Context, yield func(Remembered)) error
}

// Config configures a Cache.
type Config struct {
	Kernel Kernel
	// AllowedFor is how long the kernel remembers an allowed class.
	AllowedFor time.Duration
	// Evaluate evaluates a class with the current snapshot, and reports whether the decision
	// is lasting.
	Evaluate func(packet.Class) (d policy.Decision, lasting bool)
	// Flushed returns when the verdicts of all packets that were decided before the call
	// are sent.
	Flushed func()
	// Alone reports whether no other agent may still give verdicts on this node.
	Alone func() bool
	// Count is called with the number of packets of a class that the kernel decided as d.
	Count func(c packet.Class, d policy.Decision, packets uint64)
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Cache records which verdicts the kernel remembers. Its methods may be called from any
// goroutine; Run is called once, and before it nothing is remembered.
type Cache struct {
	cfg     Config
	metrics *metrics
	recent  *recent
	denyNow chan struct{} // signals that classes are pending

	// writing is held while the Cache changes what the kernel remembers.
	writing sync.Mutex

	mu      sync.Mutex
	enabled bool
	allowed classes
	denied  classes
	pending map[packet.Class]policy.Decision // to be denied
}

// New returns a Cache that has not touched the kernel yet.
func New(cfg Config) *Cache {
	c := &Cache{
		cfg:     cfg,
		recent:  newRecent(),
		denyNow: make(chan struct{}, 1),
		allowed: newClasses(maxAllowed),
		denied:  newClasses(maxDenied),
		pending: make(map[packet.Class]policy.Decision),
	}
	c.metrics = newMetrics(cfg.Registerer, c)
	return c
}

// Remember records that the kernel will remember that the class of a packet is allowed, and reports
// whether it may. The decision is lasting.
func (c *Cache) Remember(ev *event.Event) bool {
	class := ev.Class
	now, recorded := time.Now(), c.cfg.AllowedFor+slack
	if c.recent.count(class, now, recorded) < allowedAfter {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.enabled {
		return false
	}
	e := c.allowed.getOrAdd(class)
	if e == nil {
		return false
	}
	e.decision, e.until = ev.Decision, now.Add(recorded)
	return true
}

// Tap records lasting decisions that deny packets. It is an event.Tap.
func (c *Cache) Tap(ev *event.Event) {
	if !ev.Lasting || ev.Decision.Allowed() || c.recent.count(ev.Class, time.Now(), recentDenials) < deniedAfter {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.enabled || len(c.pending) >= maxPending {
		return
	}
	c.pending[ev.Class] = ev.Decision
	select {
	case c.denyNow <- struct{}{}:
	default:
	}
}

// Changed removes from the kernel the classes that the current snapshot decides differently.
// addrs are the addresses whose decisions may differ; all means any address. When it returns,
// earlier snapshots no longer decide packets of such a class. If the kernel cannot be
// changed, nothing more is remembered until it can.
func (c *Cache) Changed(ctx context.Context, addrs []netip.Addr, all bool) {
	if len(addrs) == 0 && !all {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.isEnabled() {
		c.forgetAll(ctx) // the kernel may remember what another agent has decided
		return
	}
	c.cfg.Flushed()
	allowed := c.removeReversed(&c.allowed, policy.Allow, addrs, all)
	denied := c.removeReversed(&c.denied, policy.Deny, addrs, all)
	if len(allowed) == 0 && len(denied) == 0 {
		return
	}
	if err := c.try(ctx, func(ctx context.Context) error { return c.cfg.Kernel.Forget(ctx, allowed, denied) }); err != nil {
		c.restart(ctx, err)
	}
}

// removeReversed removes from set, and returns, the classes with an address in addrs whose
// decision is no longer action, or no longer lasting.
func (c *Cache) removeReversed(set *classes, action policy.Action, addrs []netip.Addr, all bool) []packet.Class {
	c.mu.Lock()
	affected := set.withAddrs(addrs, all)
	c.mu.Unlock()
	var reversed []packet.Class
	for _, class := range affected {
		if d, lasting := c.cfg.Evaluate(class); !lasting || d.Action != action {
			reversed = append(reversed, class)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, class := range reversed {
		set.remove(class)
	}
	return reversed
}

// Run lets the kernel remember verdicts until ctx ends. Remembered verdicts then stay until
// they expire.
func (c *Cache) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "verdictcache"))
	if err := c.cfg.Kernel.Missing(); err != nil {
		klog.FromContext(ctx).Error(err, "Verdicts are not remembered: the agent decides every connection")
		return nil
	}
	count := time.NewTicker(countInterval)
	defer count.Stop()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	denials := c.denyNow
	var deny <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			c.retry(ctx)
		case <-count.C:
			c.count(ctx)
		case <-denials:
			c.deny(ctx)
			denials, deny = nil, time.After(denyInterval)
		case <-deny:
			denials, deny = c.denyNow, nil
		}
	}
}

// retry enables a cache that is not enabled.
func (c *Cache) retry(ctx context.Context) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.isEnabled() {
		c.enable(ctx)
	}
}

// enable starts to remember verdicts if the kernel can be emptied and no other agent adds to
// it. An agent that ends may still add classes from packets in its queues; each attempt
// removes them. The caller holds writing.
func (c *Cache) enable(ctx context.Context) {
	alone := c.cfg.Alone() // before the rest: no other agent adds a class after this
	if !c.forgetAll(ctx) || !alone {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allowed, c.denied, c.enabled = newClasses(maxAllowed), newClasses(maxDenied), true
	klog.FromContext(ctx).V(2).Info("Verdicts are remembered by the kernel", "allowedFor", c.cfg.AllowedFor)
}

// forgetAll empties the kernel and reports success. The caller holds writing.
func (c *Cache) forgetAll(ctx context.Context) bool {
	c.cfg.Flushed() // after this, no earlier verdict can add a class
	if err := c.try(ctx, c.cfg.Kernel.ForgetAll); err != nil {
		klog.FromContext(ctx).V(2).Info("Verdicts are not remembered yet", "reason", err.Error())
		return false
	}
	return true
}

func (c *Cache) isEnabled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enabled
}

// Healthy returns an error while the kernel may remember verdicts that are not recorded.
func (c *Cache) Healthy() error {
	if !c.isEnabled() && c.cfg.Kernel.Missing() == nil {
		return errors.New("the kernel may remember verdicts of another agent")
	}
	return nil
}

// restart handles an error of the kernel, which may now remember too much. Nothing more is
// remembered until the kernel has forgotten everything; restart tries that at once. The
// caller holds writing.
func (c *Cache) restart(ctx context.Context, err error) {
	if c.cfg.Alone() {
		klog.FromContext(ctx).Error(err, "Remembered verdicts could not be changed; removing all of them")
	} else {
		klog.FromContext(ctx).V(2).Info("Another agent has the remembered verdicts", "reason", err.Error())
	}
	c.mu.Lock()
	c.enabled = false
	clear(c.pending)
	c.mu.Unlock()
	c.enable(ctx)
}

// deny writes the pending classes to the kernel as denied.
func (c *Cache) deny(ctx context.Context) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.isEnabled() {
		return
	}
	now := time.Now()
	c.mu.Lock()
	pending := c.pending
	c.pending = make(map[packet.Class]policy.Decision)
	c.mu.Unlock()
	var classes []packet.Class
	for class := range pending {
		d, lasting := c.cfg.Evaluate(class)
		if !lasting || d.Allowed() {
			continue
		}
		c.mu.Lock()
		if e := c.denied.getOrAdd(class); e != nil {
			e.decision, e.until = d, now.Add(deniedFor+slack)
			classes = append(classes, class)
		}
		c.mu.Unlock()
	}
	if len(classes) == 0 {
		return
	}
	err := c.try(ctx, func(ctx context.Context) error { return c.cfg.Kernel.Deny(ctx, classes, deniedFor) })
	if err != nil {
		c.restart(ctx, err)
	}
}

// count counts the packets that the kernel decided, and removes classes that would expire
// before the next count. It also removes classes that are not recorded, which should not
// exist.
func (c *Cache) count(ctx context.Context) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.isEnabled() {
		return
	}
	var ended [2][]packet.Class // allowed, denied
	err := c.try(ctx, func(ctx context.Context) error {
		return c.cfg.Kernel.All(ctx, func(r Remembered) {
			if c.countOne(r, time.Now()) { // the listing may take long
				return
			}
			if r.Denied {
				ended[1] = append(ended[1], r.Class)
			} else {
				ended[0] = append(ended[0], r.Class)
			}
		})
	})
	if err == nil && len(ended[0])+len(ended[1]) > 0 {
		err = c.try(ctx, func(ctx context.Context) error { return c.cfg.Kernel.Forget(ctx, ended[0], ended[1]) })
	}
	c.mu.Lock()
	now := time.Now()
	c.allowed.expire(now)
	c.denied.expire(now)
	c.mu.Unlock()
	if err != nil {
		c.restart(ctx, err)
	}
}

// countOne counts the packets of a class since its last count. It reports false if the kernel
// must forget the class: it expires soon, or it is not recorded.
func (c *Cache) countOne(r Remembered, now time.Time) bool {
	c.mu.Lock()
	set, lifetime := &c.allowed, c.cfg.AllowedFor
	if r.Denied {
		set, lifetime = &c.denied, deniedFor
	}
	e := set.get(r.Class)
	if e == nil {
		c.mu.Unlock()
		return false
	}
	if since := now.Add(r.Expires - lifetime); since.Sub(e.since).Abs() > sameTime {
		e.since, e.counted = since, 0 // the kernel forgot and relearned it meanwhile
		if !r.Denied {
			e.counted = 1
		}
	}
	packets := r.Packets - min(e.counted, r.Packets)
	e.counted += packets
	d, remains := e.decision, r.Expires > countBefore
	if !remains {
		e.since = time.Time{}
	}
	c.mu.Unlock()
	if packets > 0 {
		c.metrics.packets[d.Action].Add(float64(packets))
		c.cfg.Count(r.Class, d, packets)
	}
	return remains
}

// Remembers returns the decision on a class that the kernel remembers, and since when, as of
// the last count of packets.
func (c *Cache) Remembers(class packet.Class) (d policy.Decision, since time.Time, ok bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.enabled {
		return policy.Decision{}, time.Time{}, false
	}
	for _, set := range []struct {
		classes  *classes
		lifetime time.Duration
	}{{&c.allowed, c.cfg.AllowedFor}, {&c.denied, deniedFor}} {
		if e := set.classes.get(class); e != nil && now.Before(e.since.Add(set.lifetime)) {
			return e.decision, e.since, true
		}
	}
	return policy.Decision{}, time.Time{}, false
}

// try calls the kernel with a timeout.
func (c *Cache) try(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := call(ctx)
	if errors.Is(err, context.Canceled) {
		return nil // the agent ends
	}
	return err
}
