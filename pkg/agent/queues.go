package agent

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/queue"
)

// observer learns the addresses of domain names from the DNS messages of pods. Its
// methods may be called from any goroutine.
type observer interface {
	policy.Learned
	// Follow is called with each snapshot before packets are decided by it.
	Follow(s *policy.Snapshot)
	// Resolvers returns the resolvers whose messages to and from the pods of
	// Snapshot.SelectedForNames Observe must see.
	Resolvers() []netip.AddrPort
	// Observe gets one complete packet, from its IP header on. The payload is valid
	// only during the call.
	Observe(payload []byte)
	// Run keeps Resolvers up to date until ctx ends.
	Run(ctx context.Context) error
}

// served are queues and the handler of their packets, which is called once ready is
// closed.
type served struct {
	*queue.Queues
	handler queue.Handler
	ready   <-chan struct{}
}

// always is a closed channel: packets that only audited policies select do not wait for
// the first snapshot.
var always = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// newQueues returns the queues of packets to decide, the queue of packets to audit and,
// with an observer, the queue of packets that it observes. ready is closed when packets
// can be decided.
func newQueues(cfg Config, e *enforce.Enforcer, o observer, ready <-chan struct{}, reg prometheus.Registerer) ([]served, error) {
	within := queue.Config{
		First:           cfg.Queue,
		Count:           cfg.Queues,
		FailOpen:        cfg.FailOpen.QueueFull,
		FailOpenOnPanic: cfg.FailOpen.InternalError,
		AcceptMark:      cfg.Mark,
		RememberMark:    cfg.RememberMark,
		Source:          source,
		Purpose:         "decide",
		Registerer:      reg,
	}
	var lower []queue.Config
	if cfg.Share > 0 {
		overflow := within
		overflow.First = cfg.overflowQueue()
		overflow.MaxLen = overflowLen(cfg.Queues)
		overflow.Purpose = "overflow"
		lower = append(lower, overflow)
	}
	deciding, err := queue.New(within, lower...)
	if err != nil {
		return nil, err
	}
	auditing, err := queue.New(queue.Config{
		First:           cfg.auditQueue(),
		Count:           1,
		MaxLen:          auditLen,
		FailOpen:        true,
		FailOpenOnPanic: true,
		AcceptMark:      cfg.Mark,
		RememberMark:    cfg.RememberMark,
		Purpose:         "audit",
		Registerer:      reg,
	})
	if err != nil {
		return nil, err
	}
	all := []served{{deciding, decide(e.Decide), ready}, {auditing, decide(e.Audit), always}}
	if o == nil {
		return all, nil
	}
	// Packets that the observer misses continue to the other queues.
	observing, err := queue.New(queue.Config{
		First:           cfg.observeQueue(),
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
	return append(all, served{observing, observe(o), ready}), nil
}

// observeQueue is the number of the observer's queue, after those that decide,
// and 0 without an observer.
func (c Config) observeQueue() uint16 {
	if !c.learnsNames() {
		return 0
	}
	return c.Queue + c.Queues
}

// overflowQueue is the number of the first queue for what exceeds a share, behind
// the observer's, whether there is one or not.
func (c Config) overflowQueue() uint16 { return c.Queue + c.Queues + 1 }

// auditQueue is the number of the queue for what only audited policies select, behind the
// overflow queues, whether there are some or not.
func (c Config) auditQueue() uint16 { return c.overflowQueue() + c.Queues }

// decides reports whether a number is that of a queue of packets to decide.
func (c Config) decides(number uint16) bool {
	within := func(first uint16) bool { return number >= first && number < first+c.Queues }
	return within(c.Queue) || within(c.overflowQueue())
}

// auditLen is the length of the audit queue. An agent that hangs delays so many first
// packets of pods that only audited policies select; the kernel accepts the others.
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

func decide(by func(enforce.Input) enforce.Result) queue.Handler {
	return func(p queue.Packet) queue.Verdict {
		switch by(enforce.Input(p)) {
		case enforce.Accept:
			return queue.Accept
		case enforce.Remember:
			return queue.Remember
		case enforce.Undecided:
			return queue.Defer
		case enforce.Unannounced:
			return queue.DeferLong
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

func observe(o observer) queue.Handler {
	return func(p queue.Packet) queue.Verdict {
		o.Observe(p.Payload)
		return queue.Accept
	}
}
