package agent

import (
	"context"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/queue"
)

// observer learns what domain names mean to pods, by looking on. Its methods may
// be called from any goroutine.
type observer interface {
	policy.Learned
	// Follow is told of each snapshot before packets are judged by it.
	Follow(s *policy.Snapshot)
	// Resolvers are those of which Observe is to see what they exchange with the
	// pods of Snapshot.SelectedForNames.
	Resolvers() []netip.AddrPort
	// Observe is shown one packet, from its IP header on, whole. The payload is
	// valid only during the call.
	Observe(payload []byte)
	// Run keeps Resolvers up to date until ctx ends.
	Run(ctx context.Context) error
}

// served are queues and who answers for their packets.
type served struct {
	*queue.Queues
	judge queue.Judge
}

// newQueues returns the queues that judge and, with an observer, the one of what
// it sees.
func newQueues(cfg Config, e *enforce.Enforcer, o observer, reg prometheus.Registerer) ([]served, error) {
	judging, err := queue.New(queue.Config{
		First:           cfg.Queue,
		Count:           cfg.Queues,
		FailOpen:        cfg.FailOpen.QueueFull,
		FailOpenOnPanic: cfg.FailOpen.InternalError,
		AcceptMark:      cfg.Mark,
		Purpose:         "judge",
		Registerer:      reg,
	})
	if err != nil {
		return nil, err
	}
	all := []served{{judging, judge(e)}}
	if o == nil {
		return all, nil
	}
	// What the observer misses goes on all the same, to be judged.
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
	return append(all, served{observing, observe(o)}), nil
}

// observeQueue is the number of the observer's queue, behind those that judge,
// and 0 without an observer.
func (c Config) observeQueue() uint16 {
	if !c.learnsNames() {
		return 0
	}
	return c.Queue + c.Queues
}

func judge(e *enforce.Enforcer) queue.Judge {
	return func(q queue.Question) queue.Verdict {
		switch e.Judge(enforce.Question(q)) {
		case enforce.Accept:
			return queue.Accept
		case enforce.Hold:
			return queue.Hold
		}
		return queue.Drop
	}
}

func observe(o observer) queue.Judge {
	return func(q queue.Question) queue.Verdict {
		o.Observe(q.Payload)
		return queue.Accept
	}
}
