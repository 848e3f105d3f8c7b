package steer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/nft"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// RememberedVerdict is a verdict that the kernel remembers.
type RememberedVerdict struct {
	Class packet.Class
	// Denied reports whether packets of the class are dropped. Else they are accepted.
	Denied bool
	// Packets is how many packets it has decided. For an allowed class it includes the
	// one that the agent has decided, and that added it.
	Packets uint64
	// Expires is the time until the kernel removes it.
	Expires time.Duration
}

// verdictKey identifies a remembered verdict.
type verdictKey struct {
	class  packet.Class
	denied bool
}

// set returns the name of the set of k.
func (k verdictKey) set() string {
	if k.denied {
		return familyName(deniedSet, k.class.Src.Is6())
	}
	return familyName(allowedSet, k.class.Src.Is6())
}

// valid reports whether the kernel can remember a verdict on c.
func valid(c packet.Class) bool {
	return c.Src.IsValid() && c.Dst.IsValid() && c.Src.Is6() == c.Dst.Is6() && !c.Src.Is4In6() && !c.Dst.Is4In6() &&
		(c.Proto == packet.TCP || c.Proto == packet.UDP)
}

// verdictKernel has the sets of verdicts. Its methods may be called from any goroutine.
type verdictKernel interface {
	// forget removes verdicts, of which some may not exist.
	forget(context.Context, []verdictKey) error
	// flush removes all verdicts in one transaction.
	flush(context.Context) error
	// deny adds denied classes, and returns how many had no room.
	deny(context.Context, []packet.Class, time.Duration) (full int, err error)
	// list calls each for all verdicts.
	list(context.Context, func(RememberedVerdict)) error
	// port returns the netlink port that its commits come from, 0 if there were none.
	port() uint32
}

var (
	errNotRemembering = errors.New("no verdicts are remembered: RememberMark is 0")
	errNotInPlace     = errors.New("the table is not in place yet")
)

// ForgetVerdicts removes what the kernel remembers of these classes as allowed and as denied:
// when it returns, the next packet of them is queued, unless it waits in a queue now and is
// accepted to be remembered. Classes that are not remembered, or not any more, are no error.
//
// Up to 4,096 classes are one transaction. On kernels before 6.3 a transaction is
// repeated in smaller parts if some of its classes have expired.
//
// It returns an error if another agent holds the table, or it is not in place yet.
func (s *Steerer) ForgetVerdicts(ctx context.Context, allowed, denied []packet.Class) error {
	keys := make([]verdictKey, 0, len(allowed)+len(denied))
	for _, c := range allowed {
		if valid(c) {
			keys = append(keys, verdictKey{c, false})
		}
	}
	for _, c := range denied {
		if valid(c) {
			keys = append(keys, verdictKey{c, true})
		}
	}
	return s.withVerdicts(ctx, "forget verdicts", func() error { return s.verdicts.forget(ctx, keys) })
}

// ForgetAllVerdicts removes all verdicts that the kernel remembers, in one transaction. It
// returns an error if another agent holds the table, or it is not in place yet.
func (s *Steerer) ForgetAllVerdicts(ctx context.Context) error {
	return s.withVerdicts(ctx, "forget all verdicts", func() error { return s.verdicts.flush(ctx) })
}

// DenyClasses has the kernel drop packets of these classes for timeout, or for what is left
// of an earlier timeout. Classes for which the sets have no room are only logged: their packets
// are queued. Up to 4,096 classes are one transaction; those before it stay if one fails.
// Classes of other protocols than TCP and UDP are ignored.
//
// It returns an error if another agent holds the table, or it is not in place yet.
func (s *Steerer) DenyClasses(ctx context.Context, classes []packet.Class, timeout time.Duration) error {
	denied := make([]packet.Class, 0, len(classes))
	for _, c := range classes {
		if valid(c) {
			denied = append(denied, c)
		}
	}
	return s.withVerdicts(ctx, "deny classes", func() error {
		full, err := s.verdicts.deny(ctx, denied, timeout)
		if full > 0 {
			klog.FromContext(ctx).V(2).Info("The kernel has no room for denied classes", "table", TableName, "classes", full)
		}
		return err
	})
}

// RememberedVerdicts calls each for all verdicts that the kernel remembers, in no order. One
// that is added or removed meanwhile may be missing, and one may be there twice; so may any while
// the kernel resizes a set, which it does after many have been added or removed.
//
// It returns an error if another agent holds the table, or it is not in place yet.
func (s *Steerer) RememberedVerdicts(ctx context.Context, each func(RememberedVerdict)) error {
	if err := s.remembering(); err != nil {
		return fmt.Errorf("list verdicts: %w", err)
	}
	if err := s.verdicts.list(ctx, each); err != nil {
		return fmt.Errorf("list verdicts: %w", err)
	}
	return nil
}

// remembering returns an error while the sets of verdicts cannot be used.
func (s *Steerer) remembering() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.cfg.remembers():
		return errNotRemembering
	case s.standby.reason != "":
		return fmt.Errorf("%w: %s", errStandby, s.standby.reason)
	case !s.inPlace:
		return errNotInPlace
	}
	return nil
}

// withVerdicts runs write, which changes the sets of verdicts, while the table is neither
// read nor replaced.
func (s *Steerer) withVerdicts(ctx context.Context, what string, write func() error) error {
	err := s.remembering()
	if err == nil {
		err = s.exclude(ctx)
	}
	if err == nil {
		err = write()
		s.include()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// exclude waits until nothing else holds writes of verdicts back, and does so until
// include is called.
func (s *Steerer) exclude(ctx context.Context) error {
	select {
	case s.excluding <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Steerer) include() { <-s.excluding }

// setInPlace records whether the table has our layout and this agent writes it.
func (s *Steerer) setInPlace(inPlace bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inPlace = inPlace
}

// planFlush flushes the sets of verdicts: another process may have added some.
func (s *Steerer) planFlush(tx *nft.Transaction) {
	if !s.cfg.remembers() {
		return
	}
	for _, set := range verdictSets {
		tx.Flush(&knftables.Set{Name: set.name})
	}
}
