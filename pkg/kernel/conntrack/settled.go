package conntrack

import (
	"context"
	"errors"
	"time"
)

// settling is a call of Settled.
type settling struct {
	since Change
	at    time.Time // when what was accepted before the call has made its entry, zero until a sync has begun
	done  chan struct{}
}

// Settled returns when every connection has the mark that the latest Evaluator wants, or with the
// error of ctx. That includes the connections that were accepted until the call: by an earlier
// Evaluator, or by nftables while it selected no such packets. The caller calls it when the latest
// Evaluator decides all packets of new connections.
func (b *Blocker) Settled(ctx context.Context) error {
	s := &settling{done: make(chan struct{})}
	b.mu.Lock()
	s.since, b.since = b.since, Change{}
	if !s.since.empty() {
		b.waiting = append(b.waiting, s)
	}
	b.mu.Unlock()
	if s.since.empty() {
		return nil
	}
	b.runner.Poke()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Healthy returns an error while connections may have a wrong mark although nothing has changed:
// after the start, while another process had changed the rules, and after an error.
func (b *Blocker) Healthy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.recheck || b.missing > 0 {
		return errors.New("established connections are not all checked yet")
	}
	return nil
}

func (b *Blocker) takeWaiting() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settling = append(b.settling, b.waiting...)
	b.waiting = nil
}

// settle ends calls of Settled after a sync that began at start and returned err. passed is set if it
// made a pass.
//
// A packet that was accepted just before a check may have made its entry just after it. So the first
// sync after a call schedules another listing of what may have been accepted without an evaluation,
// soonAfter later, as check does of what it has blocked, and the sync that makes these listings ends
// the call. If classes are missing, it has to make a pass.
func (b *Blocker) settle(start time.Time, err error, passed bool) {
	now := time.Now()
	complete := err == nil && (passed || !b.passWanted)
	rest := b.settling[:0]
	for _, s := range b.settling {
		switch {
		case s.at.IsZero():
			s.at = now.Add(soonAfter)
			for _, f := range s.since.filters() {
				b.listAgain(f, s.at)
			}
		case complete && !start.Before(s.at):
			close(s.done)
			continue
		}
		rest = append(rest, s)
	}
	b.settling = rest
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err != nil:
		b.missing = 2 // as many as are wanted
	case passed:
		b.missing = max(b.missing-1, 0)
	}
}

// nextSettling returns when a sync can end a call of Settled, zero if none can without a pass, which
// has a time of its own.
func (b *Blocker) nextSettling() (next time.Time) {
	if b.passWanted {
		return next
	}
	for _, s := range b.settling {
		if next.IsZero() || s.at.Before(next) {
			next = s.at
		}
	}
	return next
}

// remember adds a change to those since the last call of Settled. If that does not come because
// another agent writes the table, many changes become a pass. It is called with the mutex held.
func (b *Blocker) remember(change Change) {
	b.since.add(change)
	if len(b.since.Opened)+len(b.since.Answered) > maxChanged {
		b.since, b.recheck = Change{All: true}, true
	}
}
