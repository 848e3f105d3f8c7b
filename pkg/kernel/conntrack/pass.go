package conntrack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// table is the kernel's connection tracking table.
type table interface {
	// entries yields the connections that f selects; a kernel that ignores filters yields more.
	// An error may be about one entry or end the iteration. The memory that an entry points to
	// is valid until the next one.
	entries(f filter) iter.Seq2[entry, error]
	// change changes existing entries in this order, and returns the result of each request. It is
	// ENOENT if the connection has ended.
	change([]request) []error
	// create adds an entry. It returns EEXIST if the kernel already tracks a connection with
	// one of its tuples.
	create(r replacement) error
	close()
}

// request is a change to an entry.
type request struct {
	key        key
	remove     bool   // the entry
	mark, mask uint32 // otherwise the bits of mask become those of mark
}

func (r request) String() string {
	if r.remove {
		return "remove a connection"
	}
	return fmt.Sprintf("mark a connection with %#x/%#x", r.mark, r.mask)
}

// changeOne makes one change.
func changeOne(t table, r request) error { return t.change([]request{r})[0] }

// change is an entry whose bit is wrong, or has no effect because the connection is offloaded.
type change struct {
	key   key
	block bool
	live  bool // packets are likely to follow
	// offloaded replaces the entry of an offloaded connection. It is nil for other connections.
	offloaded *replacement
}

// faults counts errors and keeps only the first, because a table has many entries.
type faults struct {
	first error
	count int
}

func (f *faults) add(err error) {
	f.count++
	if f.first == nil {
		f.first = err
	}
}

// err returns nil without faults.
func (f *faults) err() error {
	if f.count > 1 {
		return fmt.Errorf("%w (and %d more errors)", f.first, f.count-1)
	}
	return f.first
}

// pass sets the marks of all connections as the Evaluator decides, and records their classes. It
// continues after an error about one connection.
func (b *Blocker) pass(ctx context.Context) error {
	b.ignoreAccepted.Store(false)
	b.known.beginPass(b.second(time.Now().Add(-b.acceptedFor - slack)))
	b.readAccepted()
	l := b.beginListing()
	expected := b.schedule.wanted+len(b.schedule.listings) > 0
	count, done, err := b.list(ctx, []filter{{}}, func(ctx context.Context) error {
		b.known.makeRoom()
		return b.noticeChange(ctx)
	})
	if err == nil {
		b.known.dropStale()
		b.endOverrides(ctx, []filter{{}}, l)
		b.complete = b.complete || b.override(ctx, Overrides{Complete: true})
	}
	logger := klog.FromContext(ctx)
	logger.V(2).Info("Connections checked", "connections", count, "changed", done)
	if done > 0 && !expected {
		logger.Info("Corrected marks of connections, which another program may have added or changed", "connections", done)
	}
	return err
}

// begun is a listing whose end may end overrides.
type begun struct {
	number int
	at     time.Time
}

func (b *Blocker) beginListing() begun {
	b.listed++
	return begun{b.listed, time.Now()}
}

// pieceLen is the number of connections in a piece of a list.
const pieceLen = 1 << 10

// list sets the marks of the connections that filters select as the Evaluator decides.
//
// A large table takes seconds. Therefore it calls between, if not nil, between pieces, and the rest is
// evaluated by the latest Evaluator.
func (b *Blocker) list(ctx context.Context, filters []filter, between func(context.Context) error) (count, done int, err error) {
	var faults faults
	if err := b.readLocal(); err != nil {
		faults.add(err)
		if b.local == nil {
			return -1, 0, err
		}
	}
	reader, err := b.open(ctx)
	if err != nil {
		return -1, 0, err
	}
	defer reader.close()
	writer, err := b.open(ctx) // a listing uses the first
	if err != nil {
		return -1, 0, err
	}
	defer writer.close()
	for _, f := range filters {
		n, d := b.listOne(f, reader, writer, &faults, b.betweenPieces(ctx, between, &faults))
		count, done = count+n, done+d
	}
	return count, done, faults.err()
}

// betweenPieces returns what is called between pieces of a list.
func (b *Blocker) betweenPieces(ctx context.Context, between func(context.Context) error, faults *faults) func() {
	return func() {
		b.readAccepted()
		if between == nil {
			return
		}
		if err := between(ctx); err != nil {
			faults.add(err)
		}
	}
}

// listOne sets the marks of the connections that f selects. It calls between between pieces.
func (b *Blocker) listOne(f filter, reader, writer table, faults *faults, between func()) (count, done int) {
	var changes []change
	for e, err := range reader.entries(f) {
		if err != nil {
			faults.add(err)
			continue
		}
		changes = b.plan(f, e, changes, faults)
		count++
		if count%pieceLen > 0 {
			continue
		}
		done += b.write(writer, changes, faults)
		changes = changes[:0]
		between()
	}
	return count, done + b.write(writer, changes, faults)
}

// plan evaluates e and appends it to changes if its bit is wrong.
func (b *Blocker) plan(f filter, e entry, changes []change, faults *faults) []change {
	if f.end.IsValid() {
		b.unfiltered.noteListed(f, e)
	}
	b.noStatus = b.noStatus || e.status&f.status != f.status // a reply may come meanwhile
	v, err := b.evaluate(e, b.evaluator)
	if err != nil {
		faults.add(err)
	}
	isBlocked := e.mark&b.mark != 0
	block := v.blocks() || isBlocked && !v.unblocks()
	if block != isBlocked || block && e.offloaded() {
		changes = append(changes, e.change(block))
	}
	return changes
}

// readLocal reads the node's addresses. If it cannot, the last ones remain: a Deny does not wait for a file
// descriptor.
func (b *Blocker) readLocal() error {
	local, err := b.nodeAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	b.local = local
	return nil
}

// write makes the changes and returns how many succeeded. Live connections come first: most entries of
// a large table are of finished ones, which continue only if both ends want them to.
func (b *Blocker) write(t table, changes []change, faults *faults) (done int) {
	slices.SortStableFunc(changes, func(x, y change) int { return cmp.Compare(y.urgency(), x.urgency()) })
	replaced := 0
	for replaced < len(changes) && changes[replaced].offloaded != nil {
		done += b.noteResult(changes[replaced], blockOffloaded(t, *changes[replaced].offloaded, b.mark), faults)
		replaced++
	}
	rest := changes[replaced:]
	requests := make([]request, len(rest))
	for i, ch := range rest {
		requests[i] = ch.request(b.mark)
	}
	if len(requests) == 0 {
		return done
	}
	for i, err := range t.change(requests) {
		done += b.noteResult(rest[i], err, faults)
	}
	return done
}

// noteResult counts a change, and returns 1 if it was made.
func (b *Blocker) noteResult(ch change, err error, faults *faults) int {
	switch {
	case errors.Is(err, unix.ENOENT): // it ended meanwhile
		return 0
	case err != nil:
		faults.add(err)
		return 0
	}
	b.metrics.countChange(ch)
	return 1
}

func (ch change) urgency() int {
	switch {
	case ch.offloaded != nil:
		return 2
	case ch.live:
		return 1
	}
	return 0
}

// request returns the request that makes a change of a connection that is not offloaded.
func (ch change) request(mark uint32) request {
	r := request{key: ch.key, mask: mark}
	if ch.block {
		r.mark = mark
	}
	return r
}

// evaluate evaluates e, and records its classes. A connection that the kernel picked up is
// evaluated as if opened by either end, and gets the stricter verdict.
func (b *Blocker) evaluate(e entry, evaluate Evaluator) (Verdict, error) {
	p, ok := e.first()
	if !ok {
		return Keep, nil
	}
	v, err := b.evaluateAs(p, classOf(p), e, evaluate)
	if !e.pickedUp || b.local.has(p.Src.Addr()) {
		return v, err
	}
	reverse, err2 := b.evaluateAs(p.Swapped(), swappedClassOf(p), e, evaluate)
	return min(v, reverse), errors.Join(err, err2)
}

// evaluateAs evaluates e as a connection opened by p, of class c, and records the class.
func (b *Blocker) evaluateAs(p packet.Packet, c class, e entry, evaluate Evaluator) (Verdict, error) {
	v, err := verdictOn(evaluate, p, b.local)
	if v != Unselected {
		b.known.note(c, v, e.mark&b.mark != 0)
	}
	return v, err
}

// verdictOn evaluates the connection that p opened. It returns a panic of evaluate as an error,
// because one connection must not terminate the agent.
func verdictOn(evaluate Evaluator, p packet.Packet, local addrSet) (v Verdict, err error) {
	if local.has(p.Src.Addr()) {
		// The node may always connect to its pods, for the probes of the kubelet. An entry does
		// not contain the interface: if a pod could forge its node's address, that connection
		// is not blocked.
		return Unselected, nil
	}
	v = Keep
	err = recoverPanic(p, func() { v = evaluate(p, local.has(p.Dst.Addr())) })
	if err == nil && !v.blocks() && p.Dst.Addr().IsMulticast() {
		// The node receives a multicast packet, too.
		err = recoverPanic(p, func() { v = evaluate(p, true) })
	}
	return v, err
}

// recoverPanic returns a panic of evaluate, which is about p, as an error.
func recoverPanic(p packet.Packet, evaluate func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("evaluate %v: panic: %v\n%s", p, r, debug.Stack())
		}
	}()
	evaluate()
	return nil
}

// clone returns a copy that does not point into a message.
func (k key) clone() key {
	k.tuple, k.zone, k.id = bytes.Clone(k.tuple), bytes.Clone(k.zone), bytes.Clone(k.id)
	return k
}
