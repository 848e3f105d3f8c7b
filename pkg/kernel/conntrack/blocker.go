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
	// In the long run checks use a tenth of a core. After a quiet time they may use burst of
	// CPU time without delay. When it is used up, each check is followed by a pause of up to
	// restShare times its CPU time. The pause is at most maxRest, or minPassInterval where the
	// kernel ignores filters. So that denied connections do not go on for that long, a change
	// waits for no more than maxRest, or the CPU time of the check before: half of a core.
	restShare = 9
	burst     = 2 * time.Second
	maxRest   = 750 * time.Millisecond
	// Blocked connections are listed again after soonAfter and againAfter: a packet may have
	// been accepted just before the check and have created its entry just after it, delayed by
	// a busy CPU, or the connection may have been offloaded meanwhile. The connections of newly
	// selected addresses are listed once more after lateAfter: by then the nftables table
	// queues the packets of new ones.
	soonAfter  = 50 * time.Millisecond
	againAfter = 500 * time.Millisecond
	lateAfter  = 5 * time.Second

	// minPassInterval is the least time between the starts of two passes. Because a pass
	// lists the whole table, the pause after it is also at least restShare times its CPU time.
	minPassInterval = 5 * time.Second
	// retryInterval is as long, because a retry makes a pass, too.
	retryInterval = 5 * time.Second
	// minDrift bounds how long a missed connection keeps a wrong mark: the kernel may move
	// entries while it lists them, and when two processes write a mark at the same time, one
	// of the writes is lost. Large tables are listed less often: every driftShare times the
	// CPU time of a pass, up to maxDrift.
	minDrift   = time.Minute
	maxDrift   = 4 * time.Minute
	driftShare = 100
	// passTimeout ends a pass if the kernel does not answer.
	passTimeout = 30 * time.Second

	// agentsInterval is how often the Blocker checks whether another agent still accepts
	// packets, once there was one.
	agentsInterval = time.Second

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
	desired *Evaluator    // the latest, nil before the first
	change  Change        // since the last sync
	changed chan struct{} // has something if change does
	recheck bool
	since   Change      // since the last call of Settled
	waiting []*settling // calls of Settled that the next sync takes
	missing int         // passes without which marks may be wrong

	sockets        sockets
	overrideKernel func(context.Context, Overrides) error

	// Fakes in tests.
	open      func(context.Context) (table, error)
	count     func() (int, error)
	nodeAddrs func() (addrSet, error)
	cpuTime   func() time.Duration // that the calling thread has used

	// Owned by sync.
	evaluator        Evaluator // the latest
	overrides        overrides
	todo             work
	live             liveListed
	known            *knownClasses
	fresh            []class // known classes with packets accepted since the last evaluation
	local            addrSet // the node's addresses at the last listing
	unfiltered       unfiltered
	noStatus         bool // the kernel does not filter by status
	relistings       []relisting
	settling         []*settling
	readAt           time.Time // when to read what the previous Evaluator accepted; zero after that
	covered          bool      // a pass is planned for the last change
	passes           int       // completed
	complete         bool      // the overrides of earlier agents have ended
	listings         int       // begun
	passWanted       bool      // a pass is needed
	secondPassWanted bool      // and a second one after it
	earliestPass     time.Time // when the next pass may begin
	routinePass      time.Time // when a pass is due even if nothing has changed
	otherAgent       bool      // another agent may accept packets
	restAtMost       time.Duration
	budget           budget
	timer            *time.Timer
}

// New returns a Blocker that has not touched the kernel yet.
func New(cfg Config) (*Blocker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	b := &Blocker{
		mark:             cfg.Mark,
		acceptedFor:      cfg.AcceptedFor,
		alone:            cfg.Alone,
		overrideKernel:   cfg.Override,
		overrides:        newOverrides(),
		metrics:          newMetrics(cfg.Registerer),
		created:          time.Now(),
		count:            countEntries,
		nodeAddrs:        interfaceAddrs,
		cpuTime:          threadTime,
		changed:          make(chan struct{}, 1),
		known:            newKnownClasses(maxKnown),
		unfiltered:       make(unfiltered),
		missing:          2,
		passWanted:       true,
		secondPassWanted: true, // an earlier agent may accept packets during the first pass
	}
	b.open = b.sockets.open
	b.runner = runner.New(runner.Config{MinInterval: minInterval, RetryInterval: retryInterval}, b.sync)
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
	runner.Signal(b.changed)
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
	if err := b.sockets.prepare(maxOpen); err != nil {
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
	select {
	case <-b.changed:
	default:
	}
	return b.desired, change
}

// second returns the seconds from New until t.
func (b *Blocker) second(t time.Time) uint32 { return uint32(max(0, t.Sub(b.created)/time.Second)) }

// sync is one run of the runner.
func (b *Blocker) sync(ctx context.Context) error {
	b.takeWaiting() // before the change, which precedes the call of Settled
	evaluate, change := b.takeChange()
	if evaluate == nil {
		return nil
	}
	start, used := time.Now(), b.cpuTime()
	b.restAtMost = maxRest
	passes := b.passes
	err := b.apply(ctx, *evaluate, change)
	if err != nil {
		b.passWanted, b.secondPassWanted = true, true
	}
	b.settle(start, err, b.passes > passes)
	b.ignoreAccepted.Store(b.known.full)
	b.wakeUp()
	took := b.cpuTime() - used
	return errors.Join(err, b.rest(ctx, b.budget.spend(time.Now(), took, b.restAtMost), max(maxRest, took)))
}

// rest waits for d. Changes that come meanwhile are noticed at once. After atMost, one whose marks cannot be
// overridden ends it.
func (b *Blocker) rest(ctx context.Context, d, atMost time.Duration) error {
	if d <= 0 {
		return nil
	}
	end, early := time.After(d), time.After(atMost)
	for waits := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-end:
			return nil
		case <-early:
			early, atMost = nil, 0
			if waits {
				return nil
			}
		case <-b.changed:
			if err := b.noticeChange(ctx); err != nil {
				b.passWanted, b.secondPassWanted = true, true
				return err
			}
			waits = waits || b.todo.urgent
			if waits && atMost == 0 {
				return nil
			}
		}
	}
}

// apply checks the change, makes a pass if one is due, and then checks the changes that arrived
// during the pass. The check comes first, because a pass may take seconds, and because only a
// check lists the connections that it blocked again.
func (b *Blocker) apply(ctx context.Context, evaluate Evaluator, change Change) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	b.noteRecheck()
	b.noteOtherAgents()
	b.readAccepted()
	b.noteChange(change)
	if err := b.check(ctx, evaluate, change); err != nil || !b.passIsDue() {
		return err
	}
	if err := b.timedPass(ctx, evaluate); err != nil {
		return err
	}
	return errors.Join(b.noticeChange(ctx), b.listWork(ctx))
}

// noteChange plans a pass for a change if classes are missing. Classes may also get lost shortly
// after the change, while packets are still accepted by the previous Evaluator.
func (b *Blocker) noteChange(change Change) {
	now := time.Now()
	if !change.empty() {
		b.readAt, b.covered = now.Add(againAfter), false
	}
	if !b.readAt.IsZero() && !b.covered && (b.known.full || b.otherAgent) {
		b.passWanted, b.secondPassWanted, b.covered = true, true, true
	}
	if !now.Before(b.readAt) {
		b.readAt = time.Time{}
	}
}

// timedPass makes a pass, and sets the earliest and latest time of the next one.
func (b *Blocker) timedPass(ctx context.Context, evaluate Evaluator) error {
	start, before := time.Now(), b.cpuTime()
	err := b.pass(ctx, evaluate)
	used := b.cpuTime() - before
	b.metrics.countPass(err)
	b.earliestPass = start.Add(max(minPassInterval, (1+restShare)*used))
	if err != nil {
		return err
	}
	b.passes++
	b.passWanted, b.secondPassWanted = b.secondPassWanted, false
	b.routinePass = start.Add(min(max(minDrift, driftShare*used), maxDrift))
	return nil
}

// noteRecheck plans a pass for Recheck. It is not called during a pass, which may already have
// listed the connections in question.
func (b *Blocker) noteRecheck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.recheck {
		b.passWanted, b.missing = true, max(b.missing, 1)
	}
	b.recheck = false
}

// noteOtherAgents plans a pass when the other agents have stopped accepting packets.
func (b *Blocker) noteOtherAgents() {
	alone := b.alone == nil || b.alone()
	b.passWanted = b.passWanted || b.otherAgent && alone
	b.otherAgent = !alone
}

// passIsDue reports whether a pass is needed and may begin.
func (b *Blocker) passIsDue() bool {
	now := time.Now()
	return b.passWanted && !now.Before(b.earliestPass) || b.passes > 0 && !now.Before(b.routinePass)
}

// wakeUp schedules the next sync if no change comes first.
func (b *Blocker) wakeUp() {
	next := b.earliestPass
	if !b.passWanted {
		next = b.routinePass
	}
	if len(b.todo.filters) > 0 {
		next = time.Now()
	}
	if soon := time.Now().Add(agentsInterval); b.otherAgent && soon.Before(next) {
		next = soon
	}
	if !b.readAt.IsZero() && b.readAt.Before(next) {
		next = b.readAt
	}
	for _, r := range b.relistings {
		if r.at.Before(next) {
			next = r.at
		}
	}
	if settled := b.nextSettling(); !settled.IsZero() && settled.Before(next) {
		next = settled
	}
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(time.Until(next), b.runner.Poke)
}
