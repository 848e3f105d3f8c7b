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

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

// holderSet has the holder as its only element, or none after the holder has released
// the table. A table that an operator has made need not have the set.
const holderSet = "holder"

// holderPoll is how often another agent checks whether the holder is gone.
const holderPoll = 20 * time.Millisecond

func holderObject() *knftables.Set {
	return &knftables.Set{Name: holderSet, Type: "mark . inet_service"}
}

func holderElement(h handover.Holder) *knftables.Element {
	return &knftables.Element{Set: holderSet, Key: []string{strconv.FormatUint(uint64(h.Started), 10), strconv.Itoa(int(h.Queue))}}
}

// decodeHolder decodes an element as the kernel lists it: each part of a key is padded
// to 4 bytes.
func decodeHolder(key []byte) handover.Holder {
	if len(key) != 8 {
		return handover.Holder{}
	}
	return handover.Holder{Started: binary.NativeEndian.Uint32(key), Queue: binary.BigEndian.Uint16(key[4:])}
}

// decideStandby decides whether this agent may write the table that it has observed. d is
// the desired state.
func (s *Steerer) decideStandby(ctx context.Context, d *desiredState) (handover.Standby, error) {
	if s.cfg.Agents == nil {
		return handover.Standby{}, nil
	}
	r, exists, err := s.record(ctx)
	if err != nil || !exists {
		return handover.Standby{}, err
	}
	r.Queues = slices.DeleteFunc(r.Queues, s.cfg.deciding().Contains)
	return s.cfg.Holder.Stand(r, s.cfg.Agents, d.final()), nil
}

// record returns what the observed table says about its holder, or if there is none, the former one.
func (s *Steerer) record(ctx context.Context) (r handover.Record, exists bool, err error) {
	o := s.observed
	if o.layout == absent {
		f, err := s.former.read(ctx)
		if err != nil {
			return r, false, fmt.Errorf("read table %s: %w", FormerName, err)
		}
		return f.record, f.ours, nil
	}
	return handover.Record{Named: true, Holder: o.holder}, true, nil
}

// setStandby records what decideStandby decided. It reports whether the table may be written.
func (s *Steerer) setStandby(ctx context.Context, b handover.Standby) bool {
	s.mu.Lock()
	before := s.standby
	s.standby = b
	s.mu.Unlock()
	if b.Reason == "" {
		return true
	}
	// Another agent writes the table until this one takes over, so forget its contents.
	s.observed, s.expected, s.installed = nil, nil, base{}
	s.unsure, s.changed, s.replace = false, false, false
	if b.Reason != before.Reason {
		klog.FromContext(ctx).Info("The table is not written", "table", TableName, "reason", b.Reason, "queues", b.Behind)
	}
	runner.Signal(s.onStandby)
	return false
}

// watchHolder triggers a sync when standby is over, until ctx ends.
func (s *Steerer) watchHolder(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.onStandby:
		}
		for s.inStandby() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(holderPoll):
			}
		}
		s.runner.Poke()
	}
}

// inStandby reports whether another agent still writes the table.
func (s *Steerer) inStandby() bool {
	s.mu.Lock()
	b, decides := s.standby, s.desired.final()
	s.mu.Unlock()
	return b.Reason != "" && !b.Over(s.cfg.Agents, decides)
}

// HeldByOther reports whether another agent is known to hold the table.
func (s *Steerer) HeldByOther() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder != handover.Holder{} && s.holder != s.cfg.Holder
}

// Release stops writing the table and offers it to the other agents of the node, because this one
// ends. HeldByOther reports whether one has taken over.
func (s *Steerer) Release() {
	s.leaving.Store(true)
	s.runner.Poke()
}

// planHolder adds the changes that make this agent the holder.
func (s *Steerer) planHolder(tx *nft.Transaction) {
	if s.cfg.Holder == (handover.Holder{}) || s.observed.holder == s.cfg.Holder {
		return
	}
	if s.observed.named {
		tx.Flush(&knftables.Set{Name: holderSet})
	}
	tx.Add(holderElement(s.cfg.Holder))
}

// release removes this agent from holderSet if it is the holder.
func (s *Steerer) release(ctx context.Context) error {
	if err := s.lockTable(ctx); err != nil {
		return err
	}
	defer s.unlockTable()
	if back, err := s.handBack(ctx); back || err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		o, err := s.read(ctx)
		if err != nil {
			return err
		}
		s.setHolder(o.holder)
		if o.holder == (handover.Holder{}) || o.holder != s.cfg.Holder {
			return nil
		}
		s.setInPlace(false)
		tx := &nft.Transaction{}
		tx.Flush(&knftables.Set{Name: holderSet})
		err = s.write(ctx, tx, o.generation)
		if errors.Is(err, nft.ErrGeneration) && attempt < writeAttempts {
			continue // another agent may have taken over
		}
		if err == nil {
			klog.FromContext(ctx).Info("Table released for another agent", "table", TableName)
		}
		return err
	}
}

// setHolder records the holder of the table.
func (s *Steerer) setHolder(h handover.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder = h
	s.metrics.holder.Set(0)
	if h == s.cfg.Holder {
		s.metrics.holder.Set(1)
	}
}
