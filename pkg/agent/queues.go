package agent

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// agents implements handover.Agents.
type agents struct{ *agent }

func (a agents) Bound(number uint16) bool { return a.place.Bound(number) }
func (a agents) Listening() bool          { return a.listening() == nil }
func (a agents) Alone() bool              { return a.place.Alone() }

// queueLoops returns the loops that read packets and send verdicts.
func (a *agent) queueLoops() (all []loop) {
	for _, q := range a.queues {
		all = append(all, func(ctx context.Context) error { return q.Run(ctx, q.handler, q.ready) })
	}
	return all
}

// handledQueues are queues with the handler of their packets, which is called once ready is
// closed.
type handledQueues struct {
	*queue.Queues
	handler queue.Handler
	ready   <-chan struct{}
}

// alwaysReady is a closed channel: packets that only audited policies select do not wait for
// the first snapshot.
var alwaysReady = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// newQueues returns the queues that decide packets, the queue that audits and, unless o is nil, the
// queue that o observes. ready is closed when packets can be decided.
func newQueues(cfg Config, e *enforce.Enforcer, o *module.Observe, ready <-chan struct{}, reg prometheus.Registerer) ([]handledQueues, error) {
	primary := queue.Config{
		First:           cfg.Queue,
		Count:           cfg.queues,
		FailOpen:        cfg.FailOpen.QueueFull,
		FailOpenOnPanic: cfg.FailOpen.InternalError,
		AcceptMark:      cfg.Marks.Decided,
		ClassMark:       cfg.Marks.Lower,
		RejectMark:      cfg.rejectMark,
		EstablishedMark: cfg.Marks.Lower,
		Source:          source,
		Purpose:         "decide",
		Registerer:      reg,
	}
	var lower []queue.Config
	if cfg.share > 0 {
		overflow := primary
		overflow.First = cfg.overflowQueue()
		overflow.MaxLen = overflowLen(cfg.queues)
		overflow.Purpose = "overflow"
		lower = append(lower, overflow)
	}
	deciding, err := queue.New(primary, lower...)
	if err != nil {
		return nil, err
	}
	auditing, err := queue.New(queue.Config{
		First:           cfg.auditQueue(),
		Count:           1,
		MaxLen:          auditLen,
		FailOpen:        true,
		FailOpenOnPanic: true,
		AcceptMark:      cfg.Marks.Decided,
		ClassMark:       cfg.Marks.Lower,
		Purpose:         "audit",
		Registerer:      reg,
	})
	if err != nil {
		return nil, err
	}
	all := []handledQueues{{deciding, decide(e.Decide), ready}, {auditing, decide(e.Audit), alwaysReady}}
	if o == nil {
		return all, nil
	}
	// Packets that the observer misses continue to the other queues.
	observing, err := queue.New(queue.Config{
		First:           cfg.observeQueue(o),
		Count:           1,
		CopyRange:       queue.MaxCopyRange,
		FailOpen:        true,
		FailOpenOnPanic: true,
		Purpose:         "observe",
		Registerer:      reg,
	})
	if err != nil {
		return nil, err
	}
	return append(all, handledQueues{observing, observe(o), ready}), nil
}

// observeQueue is the number of the observer's queue, which follows those that decide, or 0
// without an observer.
func (c Config) observeQueue(o *module.Observe) uint16 {
	if o == nil {
		return 0
	}
	return c.Queue + c.queues
}

// overflowQueue is the number of the first queue for packets beyond a pod's share. It follows
// the observer's number, whether that is used or not.
func (c Config) overflowQueue() uint16 { return c.Queue + c.queues + 1 }

// auditQueue is the number of the queue for packets that only audited policies select. It
// follows the overflow queues' numbers, whether these are used or not.
func (c Config) auditQueue() uint16 { return c.overflowQueue() + c.queues }

// numbers are those of all queues of this agent, and one more that identifies it, see holder.
func (c Config) numbers() queuenum.Range {
	return queuenum.Range{First: c.Queue, Count: 2*c.queues + 3}
}

// holder identifies this agent.
func (c Config) holder() handover.Holder {
	return handover.Holder{Started: c.started, Queue: uint16(c.numbers().Last())}
}

// decides reports whether a number is that of a queue of packets to decide.
func (c Config) decides(number uint16) bool {
	return queuenum.Range{First: c.Queue, Count: c.queues}.Contains(number) || queuenum.Range{First: c.overflowQueue(), Count: c.queues}.Contains(number)
}

// auditLen is the length of the audit queue. An agent that hangs delays at most this many
// first packets of pods that only audited policies select; the kernel accepts further ones.
const auditLen = 256

// overflowLen is the length of each overflow queue. Each queued packet has a conntrack
// entry: together they may use a quarter of the table, so that a flood leaves room for
// connections of other pods.
func overflowLen(queues uint16) uint32 {
	const path = "/proc/sys/net/netfilter/nf_conntrack_max"
	text, err := os.ReadFile(path)
	if err != nil {
		return queue.DefaultMaxLen
	}
	entries, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || entries == 0 { // 0 is no limit
		return queue.DefaultMaxLen
	}
	return uint32(min(queue.DefaultMaxLen, max(64, entries/4/uint64(queues))))
}

func decide(enforcer func(enforce.Input) event.Result) queue.Handler {
	return func(p queue.Packet) queue.Verdict {
		switch enforcer(enforce.Input(p)) {
		case event.Accept:
			return queue.Accept
		case event.AcceptClass:
			return queue.AcceptClass
		case event.ShortWait:
			return queue.Defer
		case event.LongWait:
			return queue.DeferLong
		case event.Reject:
			return queue.Reject
		}
		return queue.Drop
	}
}

// source returns the source address of a packet, the zero Addr if it cannot be parsed.
func source(payload []byte) netip.Addr {
	p, err := packet.Parse(payload)
	if err != nil {
		return netip.Addr{}
	}
	return p.Src.Addr()
}

func observe(o *module.Observe) queue.Handler {
	return func(p queue.Packet) queue.Verdict {
		o.Packet(p.Payload)
		return queue.Accept
	}
}
