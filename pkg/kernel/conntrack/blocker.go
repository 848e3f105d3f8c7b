package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// minInterval is the least time between the starts of two checks; changes that arrive
	// meanwhile share one. It adds to the time that a newly denied connection continues.
	minInterval = 20 * time.Millisecond
	// passTimeout ends a pass if the kernel does not answer.
	passTimeout = 30 * time.Second
	// slack is how much longer than Config.AcceptedFor a class stays known after the last
	// accepted packet.
	slack = 10 * time.Second
	// maxChanged bounds the addresses of a Change; with more, all connections are evaluated.
	maxChanged = 1 << 16
)

// Verdict is what happens to an established connection. Stricter verdicts are lower values.
type Verdict uint8

const (
	Block      Verdict = iota // no packet passes in either direction; the zero value, so that a missing answer fails closed
	Keep                      // unchanged, blocked or not
	Unblock                   // all packets pass
	Unselected                // like Unblock, and not evaluated again until its addresses are in Change.Opened or Change.Answered
)

func (v Verdict) blocks() bool   { return v == Block }
func (v Verdict) unblocks() bool { return v == Unblock || v == Unselected }

// Evaluator decides about the connection that p opened. p is the packet as policies see it:
// after DNAT and before SNAT. toHost reports whether its destination is this node. An
// Evaluator is called from one goroutine.
type Evaluator func(p packet.Packet, toHost bool) Verdict

// Config configures a Blocker.
type Config struct {
	// Mark is the one bit of connection marks that a Blocker sets and clears. It preserves
	// all other bits.
	Mark uint32
	// AcceptedFor is how long after an accepted TCP or UDP packet further packets of its class
	// may be accepted without a call of Accepted.
	AcceptedFor time.Duration
	// Override makes the kernel drop packets of denied connections that have no mark yet. Nil means that it
	// cannot.
	Override func(context.Context, Overrides) error
	// Alone reports whether this is the only agent that accepts packets on this node: another
	// one does not report them here. Nil means that it is.
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

// Change says for which connections an Evaluator may differ from the previous one.
type Change struct {
	// Addrs are the addresses whose connections may be evaluated differently. All means that
	// any connection may.
	Addrs []netip.Addr
	All   bool
	// Closed are all ends whose connections the Evaluator blocks, whatever the other end and the
	// port, except those with the node itself and of an address with itself.
	Closed []End
	// Connections from Opened and connections to Answered may have been accepted without a
	// call of Accepted until now.
	Opened, Answered []netip.Addr
	// Links are interfaces with connections that the Evaluator may decide differently, and whose addresses
	// are not known. A Recheck follows.
	Links []string
}

// add merges other into c.
func (c *Change) add(other Change) {
	c.Addrs = append(c.Addrs, other.Addrs...)
	c.Opened = append(c.Opened, other.Opened...)
	c.Answered = append(c.Answered, other.Answered...)
	c.Links = append(c.Links, other.Links...)
	c.Closed = other.Closed
	c.All = c.All || other.All || len(c.Addrs) > maxChanged
	if c.All {
		c.Addrs = nil
	}
}

func (c *Change) empty() bool {
	return !c.All && len(c.Addrs)+len(c.Opened)+len(c.Answered)+len(c.Links) == 0
}

// Blocker marks connections as the latest Evaluator decides. Its methods may be called from any
// goroutine, Run only once.
//
// It knows the classes of established connections: those found by the last pass over the
// kernel's table, and those accepted since. After a change it evaluates the classes that the
// change concerns, and lists and marks the connections of the classes whose verdict changed. A
// periodic pass finds missed connections. The cache of remembered verdicts could not replace
// this: it forgets after seconds, connections last for days, and it does not contain the
// connections of pods that no policy selects.
type Blocker struct {
	mark           uint32
	acceptedFor    time.Duration
	alone          func() bool
	runner         *runner.Runner
	metrics        *metrics
	accepted       *accepted
	ignoreAccepted atomic.Bool // classes are already missing, so Accepted need not record more
	created        time.Time

	mu      sync.Mutex
	desired *Evaluator // the latest, nil before the first
	change  Change     // since the last sync
	recheck bool       // a call of Recheck since
	since   Change     // since the last call of WaitMarked
	calls   []*waiter  // of WaitMarked, since the last sync
	missing bool       // passes without which marks may be wrong

	sockets        sockets
	overrideKernel func(context.Context, Overrides) error

	// Fakes in tests.
	prepare   func(tables int) error // makes open need no file descriptors
	open      func(context.Context) (table, error)
	count     func() (int, error)
	nodeAddrs func() (addrSet, error)
	cpuTime   func() time.Duration // that the calling thread has used

	// Owned by sync.
	evaluator  Evaluator // the latest
	overrides  overrides
	todo       work
	live       liveListed
	known      *knownClasses
	fresh      []class // known classes with packets accepted since the last evaluation
	local      addrSet // the node's addresses at the last listing
	unfiltered unfiltered
	noStatus   bool // the kernel does not filter by status
	complete   bool // the overrides of earlier agents have ended
	listed     int  // listings that have begun
	schedule   schedule
	timer      *time.Timer
}

// New returns a Blocker that has not touched the kernel yet.
func New(cfg Config) (*Blocker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	b := &Blocker{
		mark:           cfg.Mark,
		acceptedFor:    cfg.AcceptedFor,
		alone:          cfg.Alone,
		overrideKernel: cfg.Override,
		overrides:      newOverrides(),
		metrics:        newMetrics(cfg.Registerer),
		created:        time.Now(),
		count:          countEntries,
		nodeAddrs:      interfaceAddrs,
		cpuTime:        threadTime,
		known:          newKnownClasses(maxKnown),
		unfiltered:     make(unfiltered),
		schedule:       newSchedule(),
		missing:        true,
	}
	b.prepare, b.open = b.sockets.prepare, b.sockets.open
	b.runner = runner.New(runner.Config{MinInterval: minInterval, RetryInterval: minPassInterval}, b.sync)
	b.accepted = newAccepted(b.runner.Poke)
	return b, nil
}

// Set stores the latest Evaluator, which differs from the previous one by change, and triggers
// a check, even during a pass. The check begins at once unless there was one just before. Set
// never blocks. The first Evaluator is applied to all connections.
func (b *Blocker) Set(evaluate Evaluator, change Change) {
	b.mu.Lock()
	b.desired = &evaluate
	b.change.add(change)
	b.remember(change)
	b.mu.Unlock()
	b.runner.Poke()
}

// Accepted records that p is accepted, which may open a connection. It must be called for each
// such packet, except for packets of its class during the next Config.AcceptedFor. eitherWay
// means that the receiver may have opened the connection, because the kernel picks it up in the
// middle. Accepted does not block or allocate.
func (b *Blocker) Accepted(p packet.Packet, eitherWay bool) {
	if b.ignoreAccepted.Load() {
		return
	}
	b.accepted.add(classOf(p), p.Hash(b.accepted.seed))
	if eitherWay {
		reply := p.Swapped()
		b.accepted.add(swappedClassOf(p), ^reply.Hash(b.accepted.seed))
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

// maxOpen is the number of sockets that are used at the same time: two of a listing, and two of one of live
// connections meanwhile.
const maxOpen = 4

// Run applies Evaluators until ctx ends. Blocked connections then stay blocked.
func (b *Blocker) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "conntrack")
	logger.Info("Started blocking established connections", "mark", fmt.Sprintf("%#x", b.mark))
	if err := b.prepare(maxOpen); err != nil {
		return err
	}
	defer b.sockets.close()
	runtime.LockOSThread() // for cpuTime
	defer runtime.UnlockOSThread()
	b.runner.Run(klog.NewContext(ctx, logger))
	if b.timer != nil {
		b.timer.Stop()
	}
	logger.Info("Stopped blocking established connections; blocked ones stay blocked")
	return nil
}

// takeChange returns the latest Evaluator, and the changes since the last call.
func (b *Blocker) takeChange() (*Evaluator, Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change := b.change
	b.change = Change{}
	return b.desired, change
}

// second returns the seconds from New until t.
func (b *Blocker) second(t time.Time) uint32 { return uint32(max(0, t.Sub(b.created)/time.Second)) }

// sync is one run of the runner.
func (b *Blocker) sync(ctx context.Context) error {
	b.takeCalls() // before the change, which precedes the call of WaitMarked
	evaluate, change := b.takeChange()
	if evaluate == nil {
		return nil
	}
	start, used := time.Now(), b.cpuTime()
	passed, err := b.apply(ctx, *evaluate, change)
	if err != nil {
		b.schedule.lose(2)
	}
	now := time.Now()
	b.schedule.release(start, now, passed && err == nil)
	b.schedule.charge(now, b.cpuTime()-used)
	b.ignoreAccepted.Store(b.known.full)
	b.mu.Lock()
	b.missing = b.schedule.missing > 0
	b.mu.Unlock()
	b.wakeUp()
	return err
}

// takeCalls notes the calls of WaitMarked and Recheck since the last sync. A pass that has begun may already
// have listed the connections of a Recheck.
func (b *Blocker) takeCalls() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.schedule.calls = append(b.schedule.calls, b.calls...)
	b.calls = nil
	if b.recheck {
		b.schedule.lose(1)
	}
	b.missing, b.recheck = b.missing || b.recheck, false
}

// apply notices the change, and unless that has to wait sets marks, makes a pass if one is due, and then
// checks the changes that arrived during the pass. The check comes first, because a pass may take seconds,
// and because only a check lists the connections that it blocked again.
func (b *Blocker) apply(ctx context.Context, evaluate Evaluator, change Change) (passed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	b.schedule.beside(time.Now(), b.alone != nil && !b.alone())
	b.readAccepted()
	b.noteChange(change)
	b.evaluator = evaluate
	err = b.notice(ctx, change)
	if b.schedule.paused(time.Now()) {
		return false, err
	}
	b.schedule.work()
	err = errors.Join(err, b.listWork(ctx))
	now := time.Now()
	if err != nil || !b.schedule.due(passDue, now) && !b.schedule.due(routineDue, now) {
		return false, err
	}
	if err := b.timedPass(ctx); err != nil {
		return false, err
	}
	return true, errors.Join(b.noticeChange(ctx), b.listWork(ctx))
}

// noteChange notes that connections of change may have to be evaluated.
func (b *Blocker) noteChange(change Change) {
	beside := !b.schedule.agents.IsZero()
	b.schedule.change(time.Now(), !change.empty(), b.known.full || beside)
}

// timedPass makes a pass, and sets the time of the next one.
func (b *Blocker) timedPass(ctx context.Context) error {
	start, before := time.Now(), b.cpuTime()
	err := b.pass(ctx)
	b.schedule.passed(start, b.cpuTime()-before, err)
	b.metrics.countPass(err)
	return err
}

// wakeUp schedules the next sync if no change comes first.
func (b *Blocker) wakeUp() {
	if b.timer != nil {
		b.timer.Stop()
	}
	if next, _, ok := b.schedule.next(); ok {
		b.timer = time.AfterFunc(time.Until(next), b.runner.Poke)
	}
}
