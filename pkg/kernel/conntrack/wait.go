package conntrack

import (
	"context"
	"errors"
)

// WaitMarked returns when every connection has the mark that the latest Evaluator wants, or with the
// error of ctx. That includes the connections that were accepted until the call: by an earlier
// Evaluator, or by nftables while it selected no such packets. The caller calls it when the latest
// Evaluator decides all packets of new connections.
func (b *Blocker) WaitMarked(ctx context.Context) error {
	s := &waiter{done: make(chan struct{})}
	b.mu.Lock()
	s.since, b.since = b.since, Change{}
	if !s.since.empty() {
		b.calls = append(b.calls, s)
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
	if b.recheck || b.missing {
		return errors.New("established connections are not all checked yet")
	}
	return nil
}

// remember adds a change to those since the last call of WaitMarked. If that does not come because
// another agent writes the table, many changes become a pass. It is called with the mutex held.
func (b *Blocker) remember(change Change) {
	b.since.add(change)
	if len(b.since.Opened)+len(b.since.Answered) > maxChanged {
		b.since, b.recheck = Change{All: true}, true
	}
}
