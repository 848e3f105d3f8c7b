package flows

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	// Why returns why no learned name allows a packet that egress denied at that time, "" if no
	// name would. It is called for recorded denials. Nil explains nothing.
	Why func(s *policy.Snapshot, q policy.Query, at time.Time) string
	// Connections calls yield with each tracked connection, and reports whether the kernel
	// counts their bytes. If it is nil, bytes are not counted.
	Connections func(ctx context.Context, yield func(*Connection)) (counted bool, err error)
	// Remembers returns the decision on a class that the kernel remembers, and since when. If
	// it is nil, the kernel remembers nothing.
	Remembers func(packet.Class) (d policy.Decision, since time.Time, ok bool)
	// AuditOnly says that no policy is enforced.
	AuditOnly bool
	// State returns the state of the agent. If it is nil, answers have none.
	State func() State
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Recorder records decisions. Its methods may be called from any goroutine; Run is called
// once, and before it decisions are lost as soon as the buffer is full.
type Recorder struct {
	cfg    Config
	buffer *buffer
	recent recent
	late   atomic.Uint64 // packets that do not begin a connection
	epoch  time.Time     // zero of all times, by the monotonic clock
	// wall returns the wall clock time, and since the time since epoch.
	wall  func() time.Time
	since func() time.Duration

	counting sync.Mutex // held while bytes are counted
	counted  time.Time  // when bytes may be counted again

	mu      sync.Mutex
	table   *table
	denials *denials
	decided rules // by policies
	audited rules // by audited policies, where their verdict differs
}

// New returns a Recorder without records.
func New(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg, buffer: newBuffer(packet.NewSeed()), epoch: time.Now(), wall: time.Now}
	r.recent.seed, r.recent.epoch = r.buffer.seed, r.epoch
	r.since = func() time.Duration { return time.Since(r.epoch) }
	r.table = newTable(r.epoch, maxFlows, maxFlows/sharePerSource)
	r.denials = newDenials(r.epoch)
	r.decided, r.audited = make(rules), make(rules)
	cfg.Registerer.MustRegister(ruleMetrics{r})
	return r
}

// Decided records the decision d of s about p, made at the time at. would is the decision with
// audited policies if its verdict differs, else nil. Decided does not block or allocate.
func (r *Recorder) Decided(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, would *policy.Decision, at time.Time) {
	if p.Proto == packet.UDP && d.Allowed() {
		r.recent.add(p, at)
	}
	r.buffer.add(p, d, s, would, at)
}

// Late counts a decided packet that does not begin a connection. Such packets are in no flow.
func (r *Recorder) Late() { r.late.Add(1) }

// Remembered records packets of class c that the kernel decided by the remembered decision d.
// s has the names of the pods. Too slow for the packet path.
func (r *Recorder) Remembered(c packet.Class, d policy.Decision, s *policy.Snapshot, packets uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if p := c.Packet(); p.Proto == packet.UDP && d.Allowed() {
		r.recent.add(&p, now)
	}
	r.add(&decided{packet: c.Packet(), decision: d, snapshot: s, first: now, last: now, count: packets})
	if !d.Allowed() {
		r.denials.withheld += packets
	}
}

// Run adds up decisions until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
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
		if !d.decision.Allowed() {
			r.deny(d, f)
		}
	})
}

// deny records a denied packet of the flow f, which is nil if the flow was lost. The caller holds
// r.mu.
func (r *Recorder) deny(d *decided, f *flow) {
	denied := r.denials.add(d, r.cfg.Learned, r.table.next())
	if denied == nil || r.cfg.Why == nil || d.decision.Direction != policy.Egress {
		return
	}
	denied.why = r.cfg.Why(d.snapshot, policy.Query{Packet: d.packet, Defer: true}, d.first)
	if f != nil {
		f.why = denied.why
	}
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

// responsible returns the address that a flow counts for: the source if it is a pod, else the
// destination, because a sender outside the cluster can choose its address.
func (d *decided) responsible() netip.Addr {
	if from := d.packet.Src.Addr(); d.snapshot.Endpoint(from) != nil {
		return from
	}
	return d.packet.Dst.Addr()
}
