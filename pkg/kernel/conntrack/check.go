package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// maxAgain bounds the filters that wait to be listed again.
const maxAgain = 4 * maxFiltered

// readAccepted adds the classes of accepted packets to the known classes.
func (b *Blocker) readAccepted() {
	classes, lost := b.accepted.read()
	b.known.full = b.known.full || lost
	now := b.second(time.Now())
	for _, c := range classes {
		s := b.known.add(c)
		if s == nil {
			return
		}
		s.accepted = now
		if !s.open {
			s.open = true
			b.fresh = append(b.fresh, c)
		}
	}
}

// relisting is a filter whose connections will be listed again.
type relisting struct {
	filter
	at time.Time // when the listing is due
}

// check evaluates the known classes that change concerns, and those of packets accepted since
// the last check. It lists the connections of the classes to be blocked or unblocked, and sets
// their marks. If they have too many addresses, it plans a pass instead.
func (b *Blocker) check(ctx context.Context, evaluate Evaluator, change Change) error {
	blocked, unblocked, err := b.evaluateClasses(evaluate, change)
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
	b.metrics.checks.observe(time.Since(start), err)
	return err
}

// filters selects the connections that may have been accepted without being evaluated.
func (c *Change) filters() (filters []filter) {
	// A connection that the kernel picked up may be tracked from the wrong end.
	for _, a := range slices.Concat(c.Opened, c.Answered) {
		filters = append(filters, openedBy(a), answeredBy(a))
	}
	return withoutDuplicates(filters)
}

// listAgain schedules a listing of f. If too many are scheduled, it plans a pass instead.
func (b *Blocker) listAgain(f filter, at time.Time) {
	switch {
	case len(b.relistings) < maxAgain:
		b.relistings = append(b.relistings, relisting{f, at})
	default:
		b.passWanted, b.secondPassWanted = true, true
	}
}

// dueAgain removes and returns the filters whose listing is due.
func (b *Blocker) dueAgain(now time.Time) (due []filter) {
	b.relistings = slices.DeleteFunc(b.relistings, func(r relisting) bool {
		if now.Before(r.at) {
			return false
		}
		due = append(due, r.filter)
		return true
	})
	return due
}

// evaluateClasses evaluates the classes that change concerns, and returns the positions of those that have
// connections to be blocked, and of those that have connections to be unblocked.
func (b *Blocker) evaluateClasses(evaluate Evaluator, change Change) (blocked, unblocked []uint32, err error) {
	var faults faults
	consider := func(i uint32, fresh bool) {
		s := &b.known.slots[i]
		v, err := verdictOn(evaluate, s.packet(), b.local)
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
		b.known.eachOf(a.As16(), func(i uint32) { consider(i, false) })
	}
	for _, c := range b.fresh {
		if i, ok := b.known.index[c]; ok {
			consider(i, true)
		}
	}
	b.fresh = b.fresh[:0]
	return blocked, unblocked, faults.err()
}

// filters returns filters that select all connections of the classes. For each class it chooses
// the address that more of the classes share.
func (b *Blocker) filters(classes []uint32) []filter {
	count := make(map[filter]int)
	ends := func(i uint32) (client, server filter) {
		p := b.known.slots[i].packet()
		if b.known.slots[i].swapped {
			return answeredBy(p.Src.Addr()), openedBy(p.Dst.Addr())
		}
		return openedBy(p.Src.Addr()), answeredBy(p.Dst.Addr())
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
	return withoutDuplicates(filters)
}

// withoutDuplicates removes duplicates.
func withoutDuplicates(filters []filter) []filter {
	seen := make(map[filter]bool)
	return slices.DeleteFunc(filters, func(f filter) bool {
		was := seen[f]
		seen[f] = true
		return was
	})
}

// checkListed sets the marks of the connections that filters select, including those of the
// classes blocked and unblocked.
func (b *Blocker) checkListed(ctx context.Context, evaluate Evaluator, filters []filter, blocked, unblocked []uint32) error {
	filters, err := b.listable(ctx, filters)
	if err != nil {
		return err
	}
	if len(filters) > maxFiltered {
		b.passWanted, b.secondPassWanted = true, true
		if now := time.Now(); b.budget.has(now) {
			b.earliestPass = now // denied connections must not wait for the next regular pass
		}
		return nil
	}
	// The listing sets these again if it finds such connections.
	for _, i := range blocked {
		b.known.slots[i].open = false
	}
	for _, i := range unblocked {
		b.known.slots[i].blocked = false
	}
	_, _, err = b.list(ctx, evaluate, filters, nil)
	return err
}

// listable returns filters that select at least the same connections and that the kernel
// supports. If there are few connections, it selects all.
func (b *Blocker) listable(ctx context.Context, filters []filter) ([]filter, error) {
	if fewConnections(b.count) {
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
	return withoutDuplicates(filters), nil
}
