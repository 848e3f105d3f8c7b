package steer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

// RememberedVerdict is a verdict that the kernel remembers. It has no name of its own, so that
// users of Remembered need not import this package.
type RememberedVerdict = struct {
	Class packet.Class
	// Denied reports whether packets of the class are dropped. Otherwise they are accepted.
	Denied bool
	// Packets is the number of packets that it has decided. For an allowed class this includes
	// the packet that the agent decided and that added the class.
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

// valid reports whether the kernel can remember a verdict on c: the sets contain TCP and UDP classes.
func valid(c packet.Class) bool {
	return c.Src.IsValid() && c.Dst.IsValid() && c.Src.Is6() == c.Dst.Is6() && !c.Src.Is4In6() && !c.Dst.Is4In6() &&
		(c.Proto == packet.TCP || c.Proto == packet.UDP)
}

// verdictKernel reads and writes the sets of verdicts. Its methods may be called from any goroutine.
type verdictKernel interface {
	// remove removes elements of the sets of verdicts and of renewed connections. They need not exist.
	remove(context.Context, []elementKey) error
	// flush removes all verdicts in one transaction.
	flush(context.Context) error
	// deny adds denied classes, and returns how many did not fit.
	deny(context.Context, []packet.Class, time.Duration) (full int, err error)
	// list calls each for all verdicts.
	list(context.Context, func(RememberedVerdict)) error
	// renewed calls each for the elements of the sets of renewed connections.
	renewed(ctx context.Context, each func(renewedKey)) error
	// port returns the netlink port of its commits, 0 before the first one.
	port() uint32
}

var errNotInPlace = errors.New("the table is not in place yet")

// Forget removes the remembered verdicts on these allowed and denied classes. When it returns,
// the next packet of each class is queued, unless a packet that waits in a queue now is accepted and
// remembered. Classes that are not remembered, or no longer, are ignored.
//
// Up to 4,096 classes are one transaction. On kernels before 6.3 a transaction is repeated in smaller
// parts if some of its classes have expired.
//
// It returns an error if another agent holds the table, or if the table is not in place yet.
func (r *Remembered) Forget(ctx context.Context, allowed, denied []packet.Class) error {
	keys := make([]elementKey, 0, len(allowed)+len(denied))
	for i, c := range slices.Concat(allowed, denied) {
		if valid(c) {
			keys = append(keys, verdictKey{c, i >= len(allowed)})
		}
	}
	return r.write(ctx, "forget verdicts", func() error { return r.steerer.verdicts.remove(ctx, keys) })
}

// ForgetAll removes all remembered verdicts in one transaction. It returns an error if another
// agent holds the table, or if the table is not in place yet.
func (r *Remembered) ForgetAll(ctx context.Context) error {
	return r.write(ctx, "forget all verdicts", func() error { return r.steerer.verdicts.flush(ctx) })
}

// Deny makes the kernel drop packets of these classes for timeout. It does not change the timeout
// of classes that are already denied. Classes that do not fit into the sets are only logged: their
// packets are queued. Up to 4,096 classes are one transaction; if one fails, the earlier ones stay.
// Classes of protocols other than TCP and UDP are ignored.
//
// It returns an error if another agent holds the table, or if the table is not in place yet.
func (r *Remembered) Deny(ctx context.Context, classes []packet.Class, timeout time.Duration) error {
	denied := slices.DeleteFunc(slices.Clone(classes), func(c packet.Class) bool { return !valid(c) })
	return r.write(ctx, "deny classes", func() error {
		full, err := r.steerer.verdicts.deny(ctx, denied, timeout)
		if full > 0 {
			klog.FromContext(ctx).V(2).Info("The kernel has no room for denied classes", "table", TableName, "classes", full)
		}
		return err
	})
}

// All calls each for all remembered verdicts, in no particular order. Verdicts that are
// added or removed meanwhile may be missing or come twice. While the kernel resizes a set, which it does
// after many changes, this may happen to any verdict.
//
// It returns an error if another agent holds the table, or if the table is not in place yet.
func (r *Remembered) All(ctx context.Context, each func(RememberedVerdict)) error {
	if err := r.inUse(); err != nil {
		return fmt.Errorf("list verdicts: %w", err)
	}
	if err := r.steerer.verdicts.list(ctx, each); err != nil {
		return fmt.Errorf("list verdicts: %w", err)
	}
	return nil
}

// inUse returns an error while the sets of verdicts cannot be used.
func (r *Remembered) inUse() error {
	switch {
	case r.missing != nil:
		return r.missing
	case r.steerer == nil:
		return errNotInPlace
	}
	return r.steerer.inUse()
}

// write runs f, which changes the sets of verdicts, while the table is not read or written otherwise.
func (r *Remembered) write(ctx context.Context, what string, f func() error) error {
	if err := r.inUse(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return r.steerer.locked(ctx, what, f)
}

// locked runs f, which what describes, with the table locked.
func (s *Steerer) locked(ctx context.Context, what string, f func() error) error {
	err := s.lockTable(ctx)
	if err == nil {
		err = f()
		s.unlockTable()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// inUse returns an error while this agent does not write the table.
func (s *Steerer) inUse() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.standby.Reason != "":
		return fmt.Errorf("%w: %s", errStandby, s.standby.Reason)
	case !s.inPlace:
		return errNotInPlace
	}
	return nil
}

// lockTable waits until no other goroutine of this agent writes the table or verdicts, and excludes them
// until unlockTable.
func (s *Steerer) lockTable(ctx context.Context) error {
	select {
	case s.tableLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Steerer) unlockTable() { <-s.tableLock }

// setInPlace records whether the table has our layout and this agent writes it.
func (s *Steerer) setInPlace(inPlace bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inPlace = inPlace
}

// planFlush flushes the volatile sets of parts, because another process may have changed them.
func (s *Steerer) planFlush(tx *nft.Transaction) {
	for _, p := range s.cfg.parts() {
		if !p.volatile {
			continue
		}
		for _, set := range p.sets() {
			tx.Flush(&knftables.Set{Name: set.Name})
		}
	}
}
