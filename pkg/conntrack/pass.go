package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// table is the kernel's table of connections.
type table interface {
	// entries yields the connections that f selects; a kernel without filters
	// yields others, too. An error may be about one of them or end the
	// iteration. What an entry points to is valid until the next one.
	entries(f filter) iter.Seq2[entry, error]
	// setMark sets the bits of mask in a connection's mark to those of mark. A
	// connection that has ended is ENOENT.
	setMark(k key, mark, mask uint32) error
	// remove deletes a connection's entry. One that has ended is ENOENT.
	remove(k key) error
	// create adds an entry. It is EEXIST if the kernel already tracks a connection with one
	// of its tuples.
	create(r replacement) error
	close()
}

// change is an entry whose bit differs from the desired one, or has no effect.
type change struct {
	key   key
	block bool
	// offloaded is what replaces the entry of an offloaded connection, for the bit to have an
	// effect, otherwise nil.
	offloaded *replacement
}

// faults counts errors and keeps the first: a table has many entries.
type faults struct {
	first error
	count int
}

func (f *faults) add(err error) {
	if f.count++; f.first == nil {
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

// pass sets the marks of all connections as evaluate decides, and finds their classes. An
// error about one connection does not prevent the rest.
//
// A pass over a large table takes seconds. Between two pieces of it, a change is checked as it
// would be without a pass, and the rest is evaluated by the latest Evaluator. The pause between
// two such checks is that after any check.
func (b *Blocker) pass(ctx context.Context, evaluate Evaluator) error {
	b.deaf.Store(false)
	b.known.restart(b.second(time.Now().Add(-b.acceptedFor - slack)))
	b.readAccepted()
	var checks faults
	var next time.Time // of a check
	between := func(write func()) {
		start := time.Now()
		if start.Before(next) {
			return
		}
		latest, change := b.update(evaluate, Change{})
		if change.empty() {
			return
		}
		write() // by the Evaluator before: the check must come after
		evaluate = latest
		if err := b.check(ctx, evaluate, change); err != nil {
			checks.add(err)
		}
		next = time.Now().Add(max(minInterval, restShare*time.Since(start)))
	}
	latest := func(p packet.Packet, toHost bool) Verdict { return evaluate(p, toHost) }
	count, done, err := b.list(ctx, latest, []filter{{}}, between)
	err = errors.Join(err, checks.err())
	if count >= 0 {
		b.metrics.entries.Set(float64(count))
	}
	klog.FromContext(ctx).V(2).Info("Connections checked", "connections", count, "changed", done)
	return err
}

// list sets the marks of the connections that filters select as evaluate decides. Unless it
// is nil, between is called after each piece of the list. Its argument sets the marks of the
// pieces so far.
func (b *Blocker) list(ctx context.Context, evaluate Evaluator, filters []filter, between func(write func())) (count, done int, err error) {
	if b.local, err = b.nodeAddrs(); err != nil {
		return -1, 0, fmt.Errorf("list the node's addresses: %w", err)
	}
	t, err := b.open(ctx)
	if err != nil {
		return -1, 0, err
	}
	defer t.close()
	var faults faults
	for _, f := range filters {
		var changes []change
		count += b.plan(t, f, evaluate, &changes, &faults, func() {
			b.readAccepted()
			if between == nil {
				return
			}
			between(func() {
				done += b.writeApart(ctx, changes, &faults)
				changes = nil
			})
		})
		done += b.write(t, changes, &faults)
	}
	return count, done, faults.err()
}

// pieceLen is the number of connections in a piece of a list: a pass takes long.
const pieceLen = 1 << 12

// plan counts the connections that f selects and adds those whose bit is wrong to changes.
// Only these are kept in memory. It calls between after each piece.
func (b *Blocker) plan(t table, f filter, evaluate Evaluator, changes *[]change, faults *faults, between func()) (count int) {
	for e, err := range t.entries(f) {
		if err != nil {
			faults.add(err)
			continue
		}
		if f.end.IsValid() {
			b.unfiltered.listed(f, e)
		}
		v, err := b.evaluate(e, evaluate)
		if err != nil {
			faults.add(err)
		}
		isBlocked := e.mark&b.mark != 0
		block := v.blocks() || isBlocked && !v.unblocks()
		if block != isBlocked || block && e.offloaded() {
			*changes = append(*changes, e.change(block))
		}
		if count++; count%pieceLen == 0 {
			between()
		}
	}
	return count
}

// writeApart makes the changes while a list is in progress.
func (b *Blocker) writeApart(ctx context.Context, changes []change, faults *faults) (done int) {
	t, err := b.open(ctx)
	if err != nil {
		faults.add(err)
		return 0
	}
	defer t.close()
	return b.write(t, changes, faults)
}

// write makes the changes and returns how many it made.
func (b *Blocker) write(t table, changes []change, faults *faults) (done int) {
	for _, ch := range changes {
		err := b.make(t, ch)
		switch {
		case errors.Is(err, unix.ENOENT): // it ended meanwhile
		case err != nil:
			faults.add(err)
		default:
			b.metrics.changed(ch)
			done++
		}
	}
	return done
}

// make makes one change.
func (b *Blocker) make(t table, ch change) error {
	switch {
	case !ch.block:
		return t.setMark(ch.key, 0, b.mark)
	case ch.offloaded != nil:
		return blockOffloaded(t, *ch.offloaded, b.mark)
	}
	return t.setMark(ch.key, b.mark, b.mark)
}

// evaluate evaluates e, and notes its classes. A connection that the kernel has picked up is
// evaluated as one of either end, and the stricter verdict is that on the connection.
func (b *Blocker) evaluate(e entry, evaluate Evaluator) (Verdict, error) {
	p, ok := e.first()
	if !ok {
		return Keep, nil
	}
	v, err := b.evaluateAs(p, classOf(p), e, evaluate)
	if !e.pickedUp || b.local.has(p.Src.Addr()) {
		return v, err
	}
	back, err2 := b.evaluateAs(p.Swapped(), swappedClassOf(p), e, evaluate)
	return min(v, back), errors.Join(err, err2)
}

// evaluateAs evaluates e as the connection that p, of class c, has opened, and notes the class.
func (b *Blocker) evaluateAs(p packet.Packet, c class, e entry, evaluate Evaluator) (Verdict, error) {
	v, err := ask(evaluate, p, b.local)
	if v != Unselected {
		b.known.note(c, v, e.mark&b.mark != 0)
	}
	return v, err
}

// ask evaluates the connection that p opened. It turns a panic of evaluate into an error:
// one connection must not terminate the agent.
func ask(evaluate Evaluator, p packet.Packet, local addrSet) (v Verdict, err error) {
	if local.has(p.Src.Addr()) {
		// The node may always connect to its pods: kubelet's probes. An entry
		// does not contain the interface, so that the connection of a pod is not
		// blocked if it forged its node's address while that was allowed.
		return Unselected, nil
	}
	v = Keep
	err = recovered(p, func() { v = evaluate(p, local.has(p.Dst.Addr())) })
	if err == nil && !v.blocks() && p.Dst.Addr().IsMulticast() {
		// A multicast is for the node and for others.
		err = recovered(p, func() { v = evaluate(p, true) })
	}
	return v, err
}

// recovered turns a panic of evaluate, about p, into an error.
func recovered(p packet.Packet, evaluate func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("evaluate %v: panic: %v\n%s", p, r, debug.Stack())
		}
	}()
	evaluate()
	return nil
}

// clone returns a copy that stays valid.
func (k key) clone() key {
	k.tuple, k.zone, k.id = bytes.Clone(k.tuple), bytes.Clone(k.zone), bytes.Clone(k.id)
	return k
}
