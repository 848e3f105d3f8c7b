package steer

import (
	"context"
	"errors"
	"fmt"
)

// WaitApplied returns when the desired state of the last Set, or a later one, has been written, or
// with the error of ctx. Another process or agent may have changed the table since, see Verify.
func (s *Steerer) WaitApplied(ctx context.Context) error {
	number := uint64(0)
	for {
		s.mu.Lock()
		if number == 0 && s.desired.final() {
			number = s.desired.number
		}
		if number != 0 && s.applied != nil && s.applied.number >= number {
			s.mu.Unlock()
			return nil
		}
		if s.newlyApplied == nil {
			s.newlyApplied = make(chan struct{})
		}
		applied := s.newlyApplied
		s.mu.Unlock()
		select {
		case <-applied:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Verify returns nil if the table is as this agent wants it at the time of the call: this agent writes
// it, and no other process has committed a change of it that is not repaired. Unlike Healthy, it waits
// up to notificationWait for notifications of commits that precede the call.
func (s *Steerer) Verify(ctx context.Context) error {
	now, err := s.kernel.generation(ctx)
	if err != nil {
		return fmt.Errorf("read the generation of nftables: %w", err)
	}
	s.commits.wait(ctx, now)
	if !s.commits.notifiedUpTo(now) {
		return errors.New("changes of nftables by other processes are not known")
	}
	if err := s.Healthy(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inPlace {
		return errors.New("another agent of the node writes the table")
	}
	return nil
}
