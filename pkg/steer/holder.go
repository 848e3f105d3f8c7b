package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/nft"
)

// The holder of the table is the one agent that writes it and to whose queues it sends
// packets. The table names its holder. Another agent takes the table over if it started
// later, as the new one of an upgrade or rollback, or if the holder is gone: no process
// has bound its number. So of all agents of a node exactly one writes, whatever their
// order, and there is always one that does.

// holderSet has the holder as its only element, or none after the holder has released
// the table. Tables of agents that know of no holders do not have the set.
const holderSet = "holder"

// holderPoll is how often an agent that is not the holder checks whether the holder is
// gone.
const holderPoll = 20 * time.Millisecond

// Holder identifies an agent. The zero value is no agent.
type Holder struct {
	// Started is when the agent has started, in tenths of a second since the machine
	// has. A worker that is started again in its container keeps it.
	Started uint32
	// Queue is a queue number that the agent has bound for all its life.
	Queue uint16
}

// newer reports whether h started after o.
func (h Holder) newer(o Holder) bool {
	if h.Started != o.Started {
		return h.Started > o.Started
	}
	return h.Queue > o.Queue
}

func holderObject() *knftables.Set {
	return &knftables.Set{Name: holderSet, Type: "mark . inet_service"}
}

func (h Holder) element() *knftables.Element {
	return &knftables.Element{Set: holderSet, Key: []string{strconv.FormatUint(uint64(h.Started), 10), strconv.Itoa(int(h.Queue))}}
}

// parseHolder decodes an element as element makes it, the zero Holder if it is not one.
func parseHolder(key []string) Holder {
	if len(key) != 2 {
		return Holder{}
	}
	started, errStarted := strconv.ParseUint(key[0], 0, 32)
	queue, errQueue := strconv.ParseUint(key[1], 0, 16)
	if errStarted != nil || errQueue != nil {
		return Holder{}
	}
	return Holder{uint32(started), uint16(queue)}
}

// decodeHolder decodes an element as the kernel lists it: each part of a key is padded
// to 4 bytes.
func decodeHolder(key []byte) Holder {
	if len(key) != 8 {
		return Holder{}
	}
	return Holder{binary.NativeEndian.Uint32(key), binary.BigEndian.Uint16(key[4:])}
}

// Agents is what a Steerer knows of the agents of the node.
type Agents interface {
	// Bound reports whether a process has bound a queue number.
	Bound(queue uint16) bool
	// Listening reports whether all queues of this agent are bound.
	Listening() bool
}

// standby is why the table is not written.
type standby struct {
	// reason is empty while this agent writes the table.
	reason string
	// behind are the queue numbers of the agent that holds the table. It is gone when
	// none is bound.
	behind []uint16
	// next is set if this agent takes over as soon as it can decide packets.
	next bool
}

// over reports whether the reason for standing by may be gone.
func (b standby) over(agents Agents, decides bool) bool {
	return b.next && decides && agents.Listening() || !slices.ContainsFunc(b.behind, agents.Bound)
}

// standing decides whether this agent may write the table that it has observed. d is
// the desired state.
func (s *Steerer) standing(ctx context.Context, d *desiredState) (standby, error) {
	own, agents := s.cfg.Holder, s.cfg.Agents
	switch o := s.observed; {
	case agents == nil, o.layout == absent:
		return standby{}, nil
	case !o.named:
		queues, err := s.kernel.queues(ctx)
		if err != nil {
			return standby{}, fmt.Errorf("read the queue numbers in table %s: %w", TableName, err)
		}
		queues = slices.DeleteFunc(queues, queueRange{s.cfg.Queue, s.cfg.Queues}.contains)
		b := standby{reason: "an agent of an earlier version holds the table until it ends", behind: queues}
		if b.over(agents, false) {
			return standby{}, nil
		}
		return b, nil
	case o.holder == Holder{}, o.holder.Queue == own.Queue, !agents.Bound(o.holder.Queue):
		return standby{}, nil // of no agent, of this one, or of one that had its number before
	case !own.newer(o.holder):
		return standby{reason: "a newer agent holds the table", behind: []uint16{o.holder.Queue}}, nil
	case !d.final() || !agents.Listening():
		return standby{reason: "an older agent holds the table until this one can decide packets", behind: []uint16{o.holder.Queue}, next: true}, nil
	default:
		return standby{}, nil
	}
}

// stand records a decision of standing. It reports whether the table may be written.
func (s *Steerer) stand(ctx context.Context, b standby) bool {
	s.mu.Lock()
	before := s.standby
	s.standby = b
	s.mu.Unlock()
	if b.reason == "" {
		return true
	}
	// Whatever is in the table when it is taken over, another agent has written it.
	s.observed, s.expected, s.installed = nil, nil, base{}
	s.unsure, s.changed, s.replace = false, false, false
	if b.reason != before.reason {
		klog.FromContext(ctx).Info("The table is not written", "table", TableName, "reason", b.reason, "queues", b.behind)
	}
	select {
	case s.waiting <- struct{}{}:
	default:
	}
	return false
}

// watchHolder triggers a sync when the reason for standing by may be gone, until ctx
// ends.
func (s *Steerer) watchHolder(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.waiting:
		}
		for s.standsBy() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(holderPoll):
			}
		}
		s.runner.Poke()
	}
}

// standsBy reports whether there is still a reason to stand by.
func (s *Steerer) standsBy() bool {
	s.mu.Lock()
	b, decides := s.standby, s.desired.final()
	s.mu.Unlock()
	return b.reason != "" && !b.over(s.cfg.Agents, decides)
}

// HeldByOther reports whether another agent holds the table, as far as this one knows.
func (s *Steerer) HeldByOther() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder != Holder{} && s.holder != s.cfg.Holder
}

// Release offers the table to the other agents of the node: this one ends, and writes it
// no more. HeldByOther reports whether one has taken it.
func (s *Steerer) Release() {
	s.leaving.Store(true)
	s.runner.Poke()
}

// planHolder makes this agent the holder.
func (s *Steerer) planHolder(tx *nft.Transaction) {
	if s.cfg.Holder == (Holder{}) || s.observed.holder == s.cfg.Holder {
		return
	}
	if s.observed.named {
		tx.Flush(&knftables.Set{Name: holderSet})
	}
	tx.Add(s.cfg.Holder.element())
}

// release removes this agent as the holder, if it is.
func (s *Steerer) release(ctx context.Context) error {
	if err := s.exclude(ctx); err != nil {
		return err
	}
	defer s.include()
	for attempt := 1; ; attempt++ {
		o, err := s.read(ctx)
		if err != nil {
			return err
		}
		s.setHolder(o.holder)
		if o.holder == (Holder{}) || o.holder != s.cfg.Holder {
			return nil
		}
		s.setInPlace(false)
		tx := &nft.Transaction{}
		tx.Flush(&knftables.Set{Name: holderSet})
		err = s.write(ctx, tx, o.generation)
		if errors.Is(err, nft.ErrGeneration) && attempt < writeAttempts {
			continue // another agent may have taken the table
		}
		if err == nil {
			klog.FromContext(ctx).Info("Table released for another agent", "table", TableName)
		}
		return err
	}
}

// setHolder records the holder of the table.
func (s *Steerer) setHolder(h Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder = h
	s.metrics.holder.Set(0)
	if h == s.cfg.Holder {
		s.metrics.holder.Set(1)
	}
}
