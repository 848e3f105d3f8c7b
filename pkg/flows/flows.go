package flows

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// takeInterval is how often decisions are taken out of the buffer at least.
const takeInterval = time.Second

// Config configures a Recorder.
type Config struct {
	// Node is the name of the node, which each record has.
	Node string
	// Learned has the domain names that pods have resolved. Nil knows none.
	Learned policy.Learned
	// Connections calls yield with each connection that the kernel tracks, and reports
	// whether the kernel counts their bytes. Nil is a kernel that does not.
	Connections func(ctx context.Context, yield func(*Connection)) (counted bool, err error)
	// Remembers returns the decision on a class that the kernel remembers, and since when. Nil
	// is a kernel that remembers nothing.
	Remembers func(packet.Class) (d policy.Decision, since time.Time, ok bool)
	// AuditOnly says that no policy is enforced.
	AuditOnly bool
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
	epoch  time.Time     // from which times are measured, by a clock that does not jump
	// wall returns the time of the day, and since the time since epoch.
	wall  func() time.Time
	since func() time.Duration

	counting sync.Mutex // is held while bytes are counted
	counted  time.Time  // when that ended, and may begin again

	mu      sync.Mutex
	table   *table
	denials *denials
	decided rules // by policies
	audited rules // by audited policies, if they have another verdict
	denying deniedPolicies
}

// New returns a Recorder without records.
func New(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg, buffer: newBuffer(packet.NewSeed()), epoch: time.Now(), wall: time.Now}
	r.recent.seed, r.recent.epoch = r.buffer.seed, r.epoch
	r.since = func() time.Duration { return time.Since(r.epoch) }
	r.table = newTable(r.epoch, maxFlows, maxFlows/sharePerSource)
	r.denials = newDenials(r.epoch)
	r.decided, r.audited = make(rules), make(rules)
	r.denying = make(deniedPolicies)
	r.register(cfg.Registerer)
	return r
}

// Decided records the decision d about the packet p, which was made by s at the time at. would
// is the one with audited policies if it has another verdict, else nil. Decided
// neither waits nor allocates.
func (r *Recorder) Decided(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, would *policy.Decision, at time.Time) {
	if p.Proto == packet.UDP && d.Allowed() {
		r.recent.add(p, at)
	}
	r.buffer.add(p, d, s, would, at)
}

// Late counts a packet that was decided and does not begin a connection: it is in no flow.
func (r *Recorder) Late() { r.late.Add(1) }

// Remembered records packets of the class c that the kernel decided as d, a decision that it
// remembered. s has the names of the pods. It is not for the path of packets.
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
	tick := time.NewTicker(takeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.buffer.half:
		case <-tick.C:
		}
		r.takeAll()
	}
}

// takeAll adds up what is in the buffer.
func (r *Recorder) takeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffer.take(func(d *decided) {
		r.add(d)
		if !d.decision.Allowed() {
			r.denials.add(d, r.cfg.Learned, r.table.next())
		}
	})
}

// lost returns how many decisions are in no flow. The caller has locked r.
func (r *Recorder) lost() uint64 { return r.buffer.lost.Load() + r.table.lost }

// add adds decisions that are alike to their flow and to their rule. The caller has locked r.
func (r *Recorder) add(d *decided) {
	r.table.add(d, r.cfg.Learned)
	first, last := d.first.Sub(r.epoch), d.last.Sub(r.epoch)
	if d.decision.Policy != nil {
		r.decided.add(&d.decision, d.count, first, last)
		r.denying.add(&d.decision, false, d.count, last)
	}
	if d.audited {
		r.audited.add(&d.would, d.count, first, last)
		r.denying.add(&d.would, true, d.count, last)
	}
}

// responsible returns the address that a flow counts for: that of the pod that sent it, or
// if no pod did the destination's, because such a sender can choose its address.
func (d *decided) responsible() netip.Addr {
	if from := d.packet.Src.Addr(); d.snapshot.Endpoint(from) != nil {
		return from
	}
	return d.packet.Dst.Addr()
}
