package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// maxAgain bounds the filters whose connections are listed again.
const maxAgain = 4 * maxFiltered

// readAccepted adds the classes of accepted packets to those that are known.
func (b *Blocker) readAccepted() {
	classes, lost := b.accepted.read()
	b.known.full = b.known.full || lost
	now := b.second(time.Now())
	for _, c := range classes {
		s := b.known.add(c)
		if s == nil {
			return
		}
		if s.accepted = now; !s.open {
			s.open = true
			b.fresh = append(b.fresh, c)
		}
	}
}

// relisting is a filter whose connections are to be listed again.
type relisting struct {
	filter
	at time.Time // not before
}

// check evaluates the known classes that change concerns, and those of packets that were
// read since the last check. It lists the connections of those that are to be blocked
// or unblocked, and sets their marks. If they have too many addresses, it has a pass made.
func (b *Blocker) check(ctx context.Context, evaluate Evaluator, change Change) error {
	blocked, unblocked, err := b.turned(evaluate, change)
	start := time.Now()
	filters := append(b.filters(slices.Concat(blocked, unblocked)), b.dueAgain(start)...)
	for _, f := range change.filters() {
		filters = append(filters, f)
		b.listAgain(f, start.Add(lateAfter))
		b.listAgain(f, start.Add(againAfter))
	}
	for _, f := range b.filters(blocked) {
		b.listAgain(f, start.Add(againAfter))
		b.listAgain(f, start.Add(soonAfter))
	}
	if len(filters) == 0 {
		return err
	}
	err = errors.Join(err, b.checkListed(ctx, evaluate, filters, blocked, unblocked))
	b.metrics.checks.ran(time.Since(start), err)
	return err
}

// filters selects the connections that may have been accepted without being evaluated.
func (c *Change) filters() (filters []filter) {
	// Those that the kernel has picked up are tracked from either end.
	for _, a := range slices.Concat(c.Opened, c.Answered) {
		filters = append(filters, opened(a), answered(a))
	}
	return unique(filters)
}

// listAgain has the connections of f listed at a time. If there are too many filters, it
// has a pass made.
func (b *Blocker) listAgain(f filter, at time.Time) {
	switch {
	case len(b.again) < maxAgain:
		b.again = append(b.again, relisting{f, at})
	default:
		b.wanted, b.wantedNext = true, true
	}
}

// dueAgain returns the filters whose time to be listed again has come, and forgets them.
func (b *Blocker) dueAgain(now time.Time) (due []filter) {
	b.again = slices.DeleteFunc(b.again, func(r relisting) bool {
		if now.Before(r.at) {
			return false
		}
		due = append(due, r.filter)
		return true
	})
	return due
}

// turned evaluates what change concerns, and returns the positions of the classes that have
// connections that are to be blocked, and of those that have some that are to be unblocked.
func (b *Blocker) turned(evaluate Evaluator, change Change) (blocked, unblocked []uint32, err error) {
	var faults faults
	consider := func(i uint32, fresh bool) {
		s := &b.known.slots[i]
		v, err := ask(evaluate, s.packet(), b.local)
		if err != nil {
			faults.add(err)
		}
		switch {
		case v.blocks() && (s.open || fresh):
			blocked = append(blocked, i)
		case v.unblocks() && s.blocked:
			unblocked = append(unblocked, i)
		}
	}
	if change.All {
		for i := range b.known.slots {
			consider(uint32(i), false)
		}
	}
	slices.SortFunc(change.Addrs, netip.Addr.Compare)
	for _, a := range slices.Compact(change.Addrs) {
		b.known.of(a.As16(), func(i uint32) { consider(i, false) })
	}
	for _, c := range b.fresh {
		if i, ok := b.known.at[c]; ok {
			consider(i, true)
		}
	}
	b.fresh = b.fresh[:0]
	return blocked, unblocked, faults.err()
}

// filters returns what selects all connections of some classes: by that address of each
// class which more of the classes have.
func (b *Blocker) filters(classes []uint32) []filter {
	count := make(map[filter]int)
	ends := func(i uint32) (client, server filter) {
		p := b.known.slots[i].packet()
		if b.known.slots[i].swapped {
			return answered(p.Src.Addr()), opened(p.Dst.Addr())
		}
		return opened(p.Src.Addr()), answered(p.Dst.Addr())
	}
	for _, i := range classes {
		client, server := ends(i)
		count[client]++
		count[server]++
	}
	var filters []filter
	for _, i := range classes {
		client, server := ends(i)
		if count[client] > count[server] {
			server = client
		}
		filters = append(filters, server)
	}
	return unique(filters)
}

// unique removes what is there twice.
func unique(filters []filter) []filter {
	seen := make(map[filter]bool)
	return slices.DeleteFunc(filters, func(f filter) bool {
		was := seen[f]
		seen[f] = true
		return was
	})
}

// checkListed sets the marks of the connections that filters select, among them those of
// the classes that turned.
func (b *Blocker) checkListed(ctx context.Context, evaluate Evaluator, filters []filter, blocked, unblocked []uint32) error {
	filters, err := b.listable(ctx, filters)
	if err != nil {
		return err
	}
	if len(filters) > maxFiltered {
		b.wanted, b.wantedNext = true, true
		if now := time.Now(); b.budget.has(now) {
			b.earliest = now // connections that policies deny do not wait for the next pass
		}
		return nil
	}
	// Unless some are listed.
	for _, i := range blocked {
		b.known.slots[i].open = false
	}
	for _, i := range unblocked {
		b.known.slots[i].blocked = false
	}
	_, _, err = b.list(ctx, evaluate, filters, nil)
	return err
}

// listable returns filters that the kernel follows, which select what the given ones do, and
// all connections if these are few.
func (b *Blocker) listable(ctx context.Context, filters []filter) ([]filter, error) {
	if few(b.count) {
		return []filter{{}}, nil
	}
	for i, f := range filters {
		filtered, err := b.unfiltered.filters(ctx, b.open, f.end)
		if err != nil {
			return nil, err
		}
		if !filtered {
			filters[i] = filter{family: f.family}
			b.restAtMost = minPassInterval
		}
	}
	return unique(filters), nil
}
