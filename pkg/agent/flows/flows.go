package flows

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// drainInterval is the longest time between two drains of the buffer.
const drainInterval = time.Second

// Config configures a Recorder.
type Config struct {
	// Node is the name of the node, part of each record.
	Node string
	// Learned holds the domain names that pods have resolved. It may be nil.
	Learned policy.Learned
	// Logger receives a line for each recorded denial, one for each packet that audited policies
	// would deny, with a limit of its own, and every ten seconds how many got none. Its zero value
	// logs nothing.
	Logger klog.Logger
	// Why returns why no learned name allows a packet that egress denied at that time, "" if no
	// name would. It is called for recorded denials. Nil explains nothing.
	Why func(s *policy.Snapshot, q policy.Query, at time.Time) string
	// Connections calls yield with each tracked connection, and reports whether the kernel
	// counts their bytes. If it is nil, bytes are not counted.
	Connections func(ctx context.Context, yield func(*module.Connection)) (counted bool, err error)
	// Remembers returns the decision on a class that the kernel remembers, and since when. If
	// it is nil, the kernel remembers nothing.
	Remembers func(packet.Class) (d policy.Decision, since time.Time, ok bool)
	// AuditOnly says that no policy is enforced.
	AuditOnly bool
	// State returns the state of the agent. If it is nil, answers have none.
	State func() module.State
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Recorder records decisions. Its methods may be called from any goroutine; Run is called
// once, and before it decisions are lost as soon as the buffer is full.
type Recorder struct {
	cfg    Config
	buffer *buffer
	late   atomic.Uint64 // packets that do not begin a connection
	epoch  time.Time     // zero of all times, by the monotonic clock
	// wall returns the wall clock time, and since the time since epoch.
	wall  func() time.Time
	since func() time.Duration

	counting sync.Mutex // held while bytes are counted
	counted  time.Time  // when bytes may be counted again

	mu      sync.Mutex
	table   *table
	denials denials
	denied  *denialLog
	would   *denialLog // packets that pass because the policies that would deny them are only audited
	decided rules      // by policies
	audited rules      // by audited policies, where their verdict differs
}

// New returns a Recorder without records.
func New(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg, buffer: newBuffer(packet.NewSeed()), epoch: time.Now(), wall: time.Now}
	r.since = func() time.Duration { return time.Since(r.epoch) }
	r.table = newTable(r.epoch, maxFlows, maxFlows/sharePerSource)
	r.denied = newDenialLog(cfg.Logger, r.epoch, "Packet denied", "Denied packets were not logged")
	r.would = newDenialLog(cfg.Logger, r.epoch, "Packet would be denied by audited policies", "Packets that audited policies would deny were not logged")
	r.decided, r.audited = make(rules), make(rules)
	cfg.Registerer.MustRegister(ruleMetrics{r})
	return r
}

// Tap records a decision of policies. It is an event.Tap and does not allocate.
func (r *Recorder) Tap(ev *event.Event) {
	switch {
	case ev.Result.Waits() || ev.Snapshot == nil || ev.Related || ev.Failure == event.Repeated:
	case ev.ByKernel:
		r.remember(ev)
	case ev.Late:
		r.late.Add(1)
	default:
		r.buffer.add(ev)
	}
}

// remember records packets that the kernel decided. Too slow for the packet path.
func (r *Recorder) remember(ev *event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := &decided{packet: ev.Query.Packet, decision: ev.Decision, snapshot: ev.Snapshot, first: ev.At, last: ev.At, count: ev.Count}
	r.add(all)
	if !ev.Decision.Allowed() {
		r.denied.withhold(all)
	}
}

// Run adds up decisions until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.drain() // logs the last denials
			return nil
		case <-r.buffer.half:
		case <-tick.C:
		}
		r.drain()
	}
}

// drain adds up the decisions in the buffer.
func (r *Recorder) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffer.drain(func(d *decided) {
		f := r.add(d)
		switch {
		case !d.decision.Allowed():
			r.deny(d, f)
		case d.audited && r.would.logger.Enabled() && r.would.admits(d):
			r.would.log(d, &d.would, d.snapshot.Audit(), "")
		}
	})
	now := r.since()
	r.denied.tick(now)
	r.would.tick(now)
}

// lost returns how many decisions are in no flow. The caller holds r.mu.
func (r *Recorder) lost() uint64 { return r.buffer.lost.Load() + r.table.lost }

// add adds d to its flow, which it returns, and to its rule. The caller holds r.mu.
func (r *Recorder) add(d *decided) *flow {
	f := r.table.add(d, r.cfg.Learned)
	first, last := d.first.Sub(r.epoch), d.last.Sub(r.epoch)
	if d.decision.Policy != nil {
		r.decided.add(&d.decision, d.count, first, last)
	}
	if d.audited {
		r.audited.add(&d.would, d.count, first, last)
	}
	return f
}

// blamed returns the end that d counts for, and its pod.
func (d *decided) blamed() (blamed, *policy.Endpoint) {
	from, to := d.ends()
	if from != nil {
		return blamed{d.packet.Src.Addr(), true}, from
	}
	return blamed{addr: d.packet.Dst.Addr()}, to
}
