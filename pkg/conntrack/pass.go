package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// table is the kernel's table of connections.
type table interface {
	// entries yields the connections that f asks for; a kernel that knows no
	// filters yields others, too. An error may be about one of them or end the
	// iteration. What an entry points to is valid until the next one.
	entries(f filter) iter.Seq2[entry, error]
	// setMark sets the bits of mask in a connection's mark to those of mark. A
	// connection that has ended is ENOENT.
	setMark(k key, mark, mask uint32) error
	// remove deletes a connection's entry. One that has ended is ENOENT.
	remove(k key) error
	close()
}

// change is an entry whose bit is not as wished.
type change struct {
	key key
	cut bool
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

// pass brings the whole table to what judge wants. Whatever fails leaves the
// rest of the table served.
func (c *Cutter) pass(ctx context.Context, judge Judge) error {
	local, err := c.nodeAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	t, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	var faults faults
	count, changes := c.plan(t, local, judge, &faults)
	c.metrics.entries.Set(float64(count))
	done := c.apply(t, changes, &faults)
	klog.FromContext(ctx).V(2).Info("Connections checked", "connections", count, "changed", done)
	return faults.err()
}

// plan counts the connections and returns those whose bit is wrong. Only these
// are kept in memory.
func (c *Cutter) plan(t table, local addrSet, judge Judge, faults *faults) (count int, changes []change) {
	for e, err := range t.entries(filter{}) {
		if err != nil {
			faults.add(err)
			continue
		}
		count++
		v, err := verdict(e, local, judge)
		if err != nil {
			faults.add(err)
		}
		isCut := e.mark&c.mark != 0
		if v == Cut && !isCut || v == Go && isCut {
			changes = append(changes, change{key: e.key.clone(), cut: v == Cut})
		}
	}
	return count, changes
}

// apply writes the changes and returns how many it made.
func (c *Cutter) apply(t table, changes []change, faults *faults) (done int) {
	for _, ch := range changes {
		mark, counter := uint32(0), c.metrics.restored
		if ch.cut {
			mark, counter = c.mark, c.metrics.cut
		}
		switch err := t.setMark(ch.key, mark, c.mark); {
		case errors.Is(err, unix.ENOENT): // it ended meanwhile
		case err != nil:
			faults.add(err)
		default:
			counter.Inc()
			done++
		}
	}
	return done
}

// verdict asks judge about e, unless the connection is nobody's to cut.
func verdict(e entry, local addrSet, judge Judge) (Verdict, error) {
	if e.expected {
		// It belongs to another connection, which announced it and was judged.
		return Leave, nil
	}
	p, ok := e.first()
	if !ok {
		return Leave, nil
	}
	if local.has(p.Src.Addr()) {
		// The node may always talk to its pods: kubelet's probes. Where its
		// packets come in an entry does not tell, so that a pod is spared if it
		// forged its node's address while that was allowed.
		return Go, nil
	}
	return ask(judge, p, local.has(p.Dst.Addr()))
}

// ask turns a panic of judge into an error: one connection must not end the
// agent.
func ask(judge Judge, p packet.Packet, toHost bool) (v Verdict, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = Leave, fmt.Errorf("judge %v: panic: %v\n%s", p, r, debug.Stack())
		}
	}()
	return judge(p, toHost), nil
}

// clone returns a copy that stays valid.
func (k key) clone() key {
	k.tuple, k.zone, k.id = bytes.Clone(k.tuple), bytes.Clone(k.zone), bytes.Clone(k.id)
	return k
}
