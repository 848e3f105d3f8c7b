package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

// DefaultMark is the bit of connection marks that the agent uses unless configured
// otherwise. It lies below those of kube-proxy (0x4000, 0x8000), portmap (0x2000),
// kube-router and Weave (0x10000 to 0x40000), Tailscale (0xff0000) and Calico
// (0xffff0000), and above that of the VPC plugin of AWS (0x80).
const DefaultMark uint32 = 0x800

const (
	// minInterval is the least time between the starts of two checks. Changes that
	// arrive meanwhile share one. It is a part of the time that a connection goes on after
	// a change denies it.
	minInterval = 20 * time.Millisecond
	// Checks use a tenth of a core in the long run, and burst of CPU time at once: a
	// check after a quiet time begins without delay. When that is used up, a check is followed
	// by a pause of up to restShare times its time, which is no longer than maxRest, or than
	// minPassInterval where the kernel does not filter, for the sake of the next change.
	restShare = 9
	burst     = 2 * time.Second
	maxRest   = 750 * time.Millisecond
	// Connections that were blocked are listed again soonAfter and againAfter: their packets
	// may have been accepted just before, and have made an entry just after, or have been
	// offloaded meanwhile. The agent may wait for a busy CPU in between. Those that
	// were not evaluated until now are listed once more after lateAfter: by then the
	// nftables table has the packets of further ones evaluated.
	soonAfter  = 50 * time.Millisecond
	againAfter = 500 * time.Millisecond
	lateAfter  = 5 * time.Second

	// minPassInterval is the least time between the starts of two passes. The pause
	// between them is also restShare times the time of the first one: a pass lists the
	// whole table.
	minPassInterval = 5 * time.Second
	// retryInterval is no shorter for the same reason.
	retryInterval = 5 * time.Second
	// minDrift bounds how long a missed connection stays as it is: the kernel
	// may move entries while it lists them, and when two processes write a mark
	// at the same time, one of the writes is lost. Large tables are passed over less
	// often: driftShare times the time of a pass, up to maxDrift.
	minDrift   = time.Minute
	maxDrift   = 4 * time.Minute
	driftShare = 100
	// passTimeout ends a pass when the kernel does not answer.
	passTimeout = 30 * time.Second

	// othersInterval is how often it is checked whether other agents accept packets, once
	// there was one.
	othersInterval = time.Second

	// slack is how much longer than Config.AcceptedFor a class is known of which a packet
	// was accepted.
	slack = 10 * time.Second
	// maxChanged bounds the addresses of a Change.
	maxChanged = 1 << 16
)

// Verdict is what happens to an established connection. Stricter verdicts are lower values.
type Verdict uint8

const (
	Block      Verdict = iota // no packet passes, in either direction; zero, so that a missing answer fails closed
	Keep                      // unchanged, blocked or not
	Unblock                   // all packets pass
	Unselected                // as Unblock, until its addresses are among Change.Opened or Change.Answered
)

func (v Verdict) blocks() bool   { return v == Block }
func (v Verdict) unblocks() bool { return v == Unblock || v == Unselected }

// Evaluator decides about the connection that p opened. p is the packet as policies
// see it: after DNAT and before SNAT. toHost is true if its destination is this node
// itself. An Evaluator is called from one goroutine.
type Evaluator func(p packet.Packet, toHost bool) Verdict

// Config configures a Blocker.
type Config struct {
	// Mark is the one bit of connection marks that a Blocker sets and clears.
	// All other bits are left unchanged.
	Mark uint32
	// AcceptedFor is for how long after a packet of TCP or UDP was accepted others of its
	// class may be accepted without a call of Accepted.
	AcceptedFor time.Duration
	// Alone reports whether no other agent may still accept packets on this node, which
	// does not report them here. Nil means that none does.
	Alone func() bool
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	if bits.OnesCount32(c.Mark) != 1 {
		errs = append(errs, fmt.Errorf("Mark %#x is not exactly one bit", c.Mark))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Change is what is evaluated otherwise than by the Evaluator before.
type Change struct {
	// Addrs are the addresses whose connections may be. All means that any may.
	Addrs []netip.Addr
	All   bool
	// Opened and Answered are addresses: the connections that they have opened, that were
	// opened to them, may have been accepted without a call of Accepted until now.
	Opened, Answered []netip.Addr
}

// add makes c the changes of both.
func (c *Change) add(other Change) {
	c.Addrs = append(c.Addrs, other.Addrs...)
	c.Opened = append(c.Opened, other.Opened...)
	c.Answered = append(c.Answered, other.Answered...)
	if c.All = c.All || other.All || len(c.Addrs) > maxChanged; c.All {
		c.Addrs = nil
	}
}

func (c *Change) empty() bool {
	return !c.All && len(c.Addrs)+len(c.Opened)+len(c.Answered) == 0
}

// Blocker keeps the marks of all connections as the latest Evaluator decides. Its
// methods may be called from any goroutine; Run is called once.
//
// It knows the classes of established connections: of those that the last pass over the
// kernel's table has found, and of those that were accepted since. After a change it
// evaluates the classes that the change concerns, and lists and marks the connections of
// those that are to be blocked or unblocked. A pass once in a while finds what was missed.
type Blocker struct {
	mark        uint32
	acceptedFor time.Duration
	alone       func() bool
	runner      *runner.Runner
	metrics     *metrics
	accepted    *accepted
	deaf        atomic.Bool // accepted classes need not be recorded
	began       time.Time

	mu      sync.Mutex
	desired *Evaluator // the latest, nil before the first
	change  Change     // since it was read last
	recheck bool

	// Fakes in tests.
	open      func(context.Context) (table, error)
	count     func() (int, error)
	nodeAddrs func() (addrSet, error)

	// Of sync alone.
	known      *known
	fresh      []class // known classes of which a packet was accepted since they were evaluated
	local      addrSet // of the last listing
	unfiltered unfiltered
	again      []relisting
	readAt     time.Time // when to read what was accepted by the Evaluator before; zero: it was read
	covered    bool      // a pass is wanted for the last change
	passed     bool      // there was a complete pass
	wanted     bool      // a pass is needed
	wantedNext bool      // and another one after that
	earliest   time.Time // of the next pass
	drift      time.Time // when a pass is needed anyway
	beside     bool      // another agent may accept packets
	restAtMost time.Duration
	budget     budget
	timer      *time.Timer
}

// New returns a Blocker that has not touched the kernel yet.
func New(cfg Config) (*Blocker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	b := &Blocker{
		mark:        cfg.Mark,
		acceptedFor: cfg.AcceptedFor,
		alone:       cfg.Alone,
		metrics:     newMetrics(cfg.Registerer),
		began:       time.Now(),
		open:        openKernel,
		count:       countEntries,
		nodeAddrs:   interfaceAddrs,
		known:       newKnown(maxKnown),
		unfiltered:  make(unfiltered),
		wanted:      true,
		wantedNext:  true, // what an earlier agent accepts at this time is not reported
	}
	b.runner = runner.New(runner.Config{MinInterval: minInterval, RetryInterval: retryInterval}, b.sync)
	b.accepted = newAccepted(b.runner.Poke)
	return b, nil
}

// Set stores the latest Evaluator, which differs from the one before by change, and
// triggers a check, which begins at once unless there was one just before, also during a
// pass. It never blocks. The first Evaluator is applied to all connections.
func (b *Blocker) Set(evaluate Evaluator, change Change) {
	b.mu.Lock()
	b.desired = &evaluate
	b.change.add(change)
	b.mu.Unlock()
	b.runner.Poke()
}

// Accepted reports that a packet is accepted now that may open a connection. It must be
// called for each, except that packets of its class may be accepted without a call for
// Config.AcceptedFor. eitherWay reports that the kernel begins with the packet to track a
// connection that its receiver may have opened. Accepted neither blocks nor allocates.
func (b *Blocker) Accepted(p packet.Packet, eitherWay bool) {
	if b.deaf.Load() {
		return
	}
	b.accepted.add(classOf(p), p.Hash(b.accepted.seed))
	if eitherWay {
		back := p.Swapped()
		b.accepted.add(swappedClassOf(p), ^back.Hash(b.accepted.seed))
	}
}

// Recheck triggers a pass, because connections may have been accepted without being
// evaluated. It never blocks.
func (b *Blocker) Recheck() {
	b.mu.Lock()
	b.recheck = true
	b.mu.Unlock()
	b.runner.Poke()
}

// Run applies Evaluators until ctx ends. Blocked connections then stay blocked.
func (b *Blocker) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "conntrack")
	logger.Info("Started blocking established connections", "mark", fmt.Sprintf("%#x", b.mark))
	b.runner.Run(klog.NewContext(ctx, logger))
	if b.timer != nil {
		b.timer.Stop()
	}
	logger.Info("Stopped blocking established connections; blocked ones stay blocked")
	return nil
}

// take returns the latest Evaluator and what has changed since the last call.
func (b *Blocker) take() (*Evaluator, Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change := b.change
	b.change = Change{}
	return b.desired, change
}

// second returns t in seconds.
func (b *Blocker) second(t time.Time) uint32 { return uint32(max(0, t.Sub(b.began)/time.Second)) }

// sync is one run of the runner.
func (b *Blocker) sync(ctx context.Context) error {
	evaluate, change := b.take()
	if evaluate == nil {
		return nil
	}
	start := time.Now()
	b.restAtMost = maxRest
	err := b.apply(ctx, *evaluate, change)
	if err != nil {
		b.wanted, b.wantedNext = true, true
	}
	b.deaf.Store(b.known.full)
	b.metrics.known.Set(float64(len(b.known.slots)))
	b.wakeUp()
	now := time.Now()
	pause(ctx, b.budget.spend(now, now.Sub(start), b.restAtMost))
	return err
}

// apply checks what has changed, and makes a pass if one is needed and may be made. What has
// changed meanwhile is checked after it. The check comes first, because a pass may take seconds,
// and because only a check lists the connections that it blocks again.
func (b *Blocker) apply(ctx context.Context, evaluate Evaluator, change Change) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	b.noteRecheck()
	b.noteOthers()
	b.readAccepted()
	b.noteChange(change)
	if err := b.check(ctx, evaluate, change); err != nil || !b.passIsDue() {
		return err
	}
	if err := b.timedPass(ctx, evaluate); err != nil {
		return err
	}
	evaluate, change = b.update(evaluate, Change{})
	return b.check(ctx, evaluate, change)
}

// update returns the latest Evaluator, and what has changed since change was read, too.
func (b *Blocker) update(evaluate Evaluator, change Change) (Evaluator, Change) {
	latest, more := b.take()
	if latest == nil {
		return evaluate, change
	}
	if !more.empty() {
		b.noteChange(more)
		change.add(more)
	}
	return *latest, change
}

// noteChange has a pass made for a change if classes are missing. They may have been missed
// a moment after the change, too, by the Evaluator before.
func (b *Blocker) noteChange(change Change) {
	now := time.Now()
	if !change.empty() {
		b.readAt, b.covered = now.Add(againAfter), false
	}
	if !b.readAt.IsZero() && !b.covered && (b.known.full || b.beside) {
		b.wanted, b.wantedNext, b.covered = true, true, true
	}
	if !now.Before(b.readAt) {
		b.readAt = time.Time{}
	}
}

// timedPass makes a pass, and sets when the next one may be, and when it must be.
func (b *Blocker) timedPass(ctx context.Context, evaluate Evaluator) error {
	start := time.Now()
	err := b.pass(ctx, evaluate)
	took := time.Since(start)
	b.metrics.passed(took, err)
	b.earliest = start.Add(max(minPassInterval, (1+restShare)*took))
	if err != nil {
		return err
	}
	b.passed, b.wanted, b.wantedNext = true, b.wantedNext, false
	b.drift = start.Add(min(max(minDrift, driftShare*took), maxDrift))
	return nil
}

// noteRecheck has a pass made for Recheck. During a pass it is not called: that one may have
// listed already what is to be evaluated.
func (b *Blocker) noteRecheck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = b.wanted || b.recheck
	b.recheck = false
}

// noteOthers has a pass made when other agents do not accept packets any more.
func (b *Blocker) noteOthers() {
	alone := b.alone == nil || b.alone()
	b.wanted = b.wanted || b.beside && alone
	b.beside = !alone
}

// passIsDue reports whether a pass is needed, and may begin.
func (b *Blocker) passIsDue() bool {
	now := time.Now()
	return b.wanted && !now.Before(b.earliest) || b.passed && !now.Before(b.drift)
}

// wakeUp sets the time of the next run without a change.
func (b *Blocker) wakeUp() {
	next := b.earliest
	if !b.wanted {
		next = b.drift
	}
	if soon := time.Now().Add(othersInterval); b.beside && soon.Before(next) {
		next = soon
	}
	if !b.readAt.IsZero() && b.readAt.Before(next) {
		next = b.readAt
	}
	for _, r := range b.again {
		if r.at.Before(next) {
			next = r.at
		}
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(time.Until(next), b.runner.Poke)
}

// pause returns after d, or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
