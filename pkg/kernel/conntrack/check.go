package conntrack

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

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
		s.accepted, s.stale = now, false
		if !s.open {
			s.open = true
			b.fresh = append(b.fresh, c)
		}
	}
}

// work is what the planned listings will set.
type work struct {
	blocked, unblocked []class // with connections whose marks are wrong
	live               bool    // some connections are denied
}

// noticeChange notices what has changed since the last call.
func (b *Blocker) noticeChange(ctx context.Context) error {
	latest, change := b.takeChange()
	if latest == nil {
		return nil
	}
	b.evaluator = *latest
	if change.empty() {
		return nil
	}
	b.noteChange(change)
	return b.notice(ctx, change)
}

// sliceLen is the number of classes that are evaluated at a time.
const sliceLen = 1 << 12

// notice evaluates the known classes that change concerns, and those of packets accepted since the last
// call. It overrides the marks of what is denied, and plans the listings that set the marks. Newer changes
// are noticed between slices: one address with many classes does not delay those of others.
func (b *Blocker) notice(ctx context.Context, change Change) error {
	var faults faults
	var q classQueue
	var blocked, unblocked []uint32
	b.begin(ctx, change, &q, &faults)
	for {
		slice, fresh := q.next(sliceLen)
		denied, allowed := b.evaluateClasses(slice, fresh, &faults)
		blocked, unblocked = append(blocked, denied...), append(unblocked, allowed...)
		var o Overrides
		all := b.deny(denied, &o)
		b.decideClassesAgain(allowed, &o)
		b.todo.live = b.todo.live || len(denied) > 0
		b.schedule.urgent = !b.override(ctx, o) || !all || len(allowed) > 0 || b.schedule.urgent
		b.listLive(ctx, &faults)
		if q.empty() {
			break
		}
		if latest, newer := b.takeChange(); latest != nil && !newer.empty() {
			b.evaluator = *latest
			b.noteChange(newer)
			b.begin(ctx, newer, &q, &faults)
		}
	}
	b.planListings(blocked, unblocked)
	return faults.err()
}

// begin applies what is known of change without the classes, and adds these to q.
func (b *Blocker) begin(ctx context.Context, change Change, q *classQueue, faults *faults) {
	b.live = liveListed{}
	var o Overrides
	if !change.empty() {
		b.close(change.Closed, &o)
		b.reconsider(change, &o, faults)
		b.decideAgain(b.suspects(change), &o)
	}
	b.todo.live = b.todo.live || len(o.Closed) > 0
	now := time.Now()
	filters := change.filters()
	for _, f := range filters {
		b.schedule.list(f, now.Add(lateAfter))
		b.schedule.list(f, now.Add(againAfter))
	}
	b.schedule.listNow(filters, now)
	b.schedule.urgent = !b.override(ctx, o) || len(filters) > 0 || b.schedule.urgent
	q.add(b.known, change, b.fresh)
	b.fresh = b.fresh[:0]
}

// planListings plans the listings of the connections of these classes.
func (b *Blocker) planListings(blocked, unblocked []uint32) {
	now := time.Now()
	for _, f := range b.filters(blocked) {
		b.schedule.list(f, now.Add(againAfter))
		b.schedule.list(f, now.Add(soonAfter))
	}
	b.schedule.listNow(b.filters(slices.Concat(blocked, unblocked)), now)
	for _, i := range blocked {
		b.todo.blocked = append(b.todo.blocked, b.known.slots[i].class)
	}
	for _, i := range unblocked {
		b.todo.unblocked = append(b.todo.unblocked, b.known.slots[i].class)
	}
}

// liveListed says which live connections were listed since the latest Evaluator came.
type liveListed struct{ offloaded, all bool }

// listLive sets the marks of live connections that overrides do not cover, before the rest of a large table:
// those that a flowtable forwards past all rules, and if need be all. Before the first pass no class is known,
// so what is denied is not overridden.
func (b *Blocker) listLive(ctx context.Context, faults *faults) {
	list := func(listed *bool, filters ...filter) {
		if *listed || b.noStatus || fewConnections(b.count) {
			return
		}
		*listed = true
		if _, _, err := b.list(ctx, filters, nil); err != nil {
			faults.add(err)
		}
	}
	urgent := b.schedule.urgent || b.schedule.routine.IsZero()
	if b.todo.live || urgent {
		list(&b.live.offloaded, offloadedOnes)
	}
	if urgent {
		list(&b.live.all, assuredOnes, unansweredOnes)
	}
}

// listWork sets the marks of the connections that changes have left to list, and of those whose listing is
// due.
func (b *Blocker) listWork(ctx context.Context) error {
	filters := b.schedule.takeListings(time.Now())
	w := b.todo
	b.todo = work{}
	if len(filters) == 0 {
		return nil
	}
	err := b.checkListed(ctx, filters, w)
	b.metrics.ran(taskCheck, err).Inc()
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

// evaluateClasses evaluates known classes, and returns those that have connections to be blocked, and those
// that have connections to be unblocked. fresh means that packets of them were just accepted.
func (b *Blocker) evaluateClasses(classes []uint32, fresh bool, faults *faults) (blocked, unblocked []uint32) {
	for _, i := range classes {
		s := &b.known.slots[i]
		v, err := verdictOn(b.evaluator, s.packet(), b.local)
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
	return blocked, unblocked
}

// classQueue has the classes that are to be evaluated, those of addresses with few classes first.
type classQueue struct {
	fresh []uint32
	addrs [][]uint32
}

func (q *classQueue) add(known *knownClasses, change Change, fresh []class) {
	for _, c := range fresh {
		if i, ok := known.index[c]; ok {
			q.fresh = append(q.fresh, i)
		}
	}
	if change.All {
		all := make([]uint32, len(known.slots))
		for i := range all {
			all[i] = uint32(i)
		}
		q.addrs = append(q.addrs, all)
	}
	slices.SortFunc(change.Addrs, netip.Addr.Compare)
	for _, a := range slices.Compact(change.Addrs) {
		var classes []uint32
		known.eachOf(a.As16(), func(i uint32) { classes = append(classes, i) })
		q.addrs = append(q.addrs, classes)
	}
	slices.SortStableFunc(q.addrs, func(x, y []uint32) int { return cmp.Compare(len(x), len(y)) })
}

func (q *classQueue) empty() bool { return len(q.fresh)+len(q.addrs) == 0 }

// next removes and returns up to n classes.
func (q *classQueue) next(n int) (classes []uint32, fresh bool) {
	if len(q.fresh) > 0 {
		classes, q.fresh = q.fresh[:min(n, len(q.fresh))], q.fresh[min(n, len(q.fresh)):]
		return classes, true
	}
	for len(q.addrs) > 0 && len(classes) < n {
		first := q.addrs[0]
		take := min(n-len(classes), len(first))
		classes = append(classes, first[:take]...)
		q.addrs[0] = first[take:]
		if take == len(first) {
			q.addrs = q.addrs[1:]
		}
	}
	return classes, false
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

// checkListed sets the marks of the connections that filters select, among them those of w.
func (b *Blocker) checkListed(ctx context.Context, filters []filter, w work) error {
	var faults faults
	filters, err := b.unfiltered.listable(ctx, b.open, b.count, filters, b.betweenPieces(ctx, b.noticeChange, &faults))
	if err = errors.Join(err, faults.err()); err != nil {
		return err
	}
	if slices.ContainsFunc(filters, func(f filter) bool { return f.family != unix.AF_UNSPEC && !f.end.IsValid() }) {
		b.schedule.longestPause = minPassInterval
	}
	if len(filters) > maxFiltered {
		b.schedule.hasten(time.Now()) // denied connections must not wait for the next regular pass
		return nil
	}
	// The listing sets these again if it finds such connections.
	for _, c := range w.blocked {
		if i, ok := b.known.index[c]; ok {
			b.known.slots[i].open = false
		}
	}
	for _, c := range w.unblocked {
		if i, ok := b.known.index[c]; ok {
			b.known.slots[i].blocked = false
		}
	}
	l := b.beginListing()
	_, _, err = b.list(ctx, filters, b.noticeChange)
	if err == nil {
		b.endOverrides(ctx, filters, l)
	}
	return err
}
