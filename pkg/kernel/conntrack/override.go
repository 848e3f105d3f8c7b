package conntrack

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// End is an address at which connections begin (egress) or end (ingress), or the name of an interface.
type End struct {
	Addr    netip.Addr
	Ingress bool
	Link    string // instead of Addr
}

func (e End) filter() filter {
	switch {
	case e.Link != "":
		return filter{}
	case e.Ingress:
		return answeredBy(e.Addr)
	}
	return openedBy(e.Addr)
}

// coveredBy reports whether f selects all connections of e.
func (e End) coveredBy(f filter) bool {
	return f == filter{} || e.Link == "" && (f == e.filter() || f == filter{family: familyOf(e.Addr)})
}

// Overrides change what the kernel does with packets of established connections until their marks
// follow.
type Overrides struct {
	// Denied are classes whose packets are dropped from now on. Ended are classes whose marks decide again.
	Denied, Ended []packet.Class
	// Closed are ends whose connections are dropped from now on, except those with the node itself, and of
	// an address with itself. At Opened, marks and Denied decide again.
	Closed, Opened []End
	// Again are ends with connections whose marks may be wrong: each packet of these is decided. At Marked
	// marks decide again.
	Again, Marked []End
	// Complete says that the marks of all connections are right but for these overrides: those of an earlier
	// agent end.
	Complete bool
}

func (o *Overrides) empty() bool {
	return !o.Complete && len(o.Denied)+len(o.Ended)+len(o.Closed)+len(o.Opened)+len(o.Again)+len(o.Marked) == 0
}

const (
	// maxDenied bounds the classes that are overridden at the same time: a transaction with so many takes
	// some 0.1 s. Packets of the ends of further ones are decided again.
	maxDenied = 1 << 13
	// maxEnds bounds the ends whose packets are decided again. The connections of further ones are marked,
	// live ones first.
	maxEnds = 1 << 10
)

// overrides are what the kernel does although the marks may not say so yet.
type overrides struct {
	classes map[class]time.Time // since when
	ends    map[End]time.Time   // zero once all connections of the end are marked
	again   map[End]int         // listings that had begun
}

func newOverrides() overrides {
	return overrides{classes: make(map[class]time.Time), ends: make(map[End]time.Time), again: make(map[End]int)}
}

// overridable reports whether a packet shows whether its connection is of class c.
func (c class) overridable() bool {
	return !c.swapped && (c.proto == packet.TCP || c.proto == packet.UDP)
}

func (c class) public() packet.Class {
	return packet.Class{Src: addrOf(c.src), Dst: addrOf(c.dst), Proto: c.proto, Port: c.port}
}

// close makes the ends in closed the only closed ones. Connections of those that are new are marked by
// later listings, the last of them after entries of packets that were accepted before.
func (b *Blocker) close(closed []End, o *Overrides) {
	now := time.Now()
	want := make(map[End]struct{}, len(closed))
	for _, e := range closed {
		want[e] = struct{}{}
		if _, known := b.overrides.ends[e]; !known {
			b.overrides.ends[e] = now
			o.Closed = append(o.Closed, e)
			b.schedule.list(e.filter(), now.Add(againAfter))
		}
	}
	for e, since := range b.overrides.ends {
		if _, still := want[e]; still {
			continue
		}
		delete(b.overrides.ends, e)
		if !since.IsZero() {
			o.Opened = append(o.Opened, e)
		}
	}
}

// reconsider ends the overrides of classes that change concerns and that are not denied any more.
func (b *Blocker) reconsider(change Change, o *Overrides, faults *faults) {
	concerned := make(map[[16]byte]struct{}, len(change.Addrs))
	for _, a := range change.Addrs {
		concerned[a.As16()] = struct{}{}
	}
	for c := range b.overrides.classes {
		_, src := concerned[c.src]
		_, dst := concerned[c.dst]
		if !change.All && !src && !dst {
			continue
		}
		v, err := verdictOn(b.evaluator, c.packet(), b.local)
		if err != nil {
			faults.add(err)
		}
		if !v.blocks() {
			delete(b.overrides.classes, c)
			o.Ended = append(o.Ended, c.public())
		}
	}
}

// deny overrides the marks of classes that are denied, and reports whether there was room for all.
func (b *Blocker) deny(blocked []uint32, o *Overrides) (all bool) {
	now, all := time.Now(), true
	var rest []uint32
	for _, i := range blocked {
		c := b.known.slots[i].class
		_, already := b.overrides.classes[c]
		switch {
		case c.swapped:
			all = false
			continue
		case !c.overridable() || !already && len(b.overrides.classes) >= maxDenied:
			rest = append(rest, i)
			continue
		case !already:
			o.Denied = append(o.Denied, c.public())
		}
		b.overrides.classes[c] = now
	}
	return b.decideClassesAgain(rest, o) && all
}

// decideClassesAgain is decideAgain for ends of all connections of the classes, which it plans to list.
func (b *Blocker) decideClassesAgain(classes []uint32, o *Overrides) (all bool) {
	filters := b.filters(classes)
	b.schedule.listNow(filters, time.Now())
	ends := make([]End, len(filters))
	for i, f := range filters {
		ends[i] = End{Addr: f.end, Ingress: f.reply}
	}
	return b.decideAgain(ends, o)
}

// suspects returns ends with connections that change may concern and that are not known: they will be listed.
func (b *Blocker) suspects(change Change) (ends []End) {
	both := change.Addrs
	if !b.known.full {
		both = nil
	}
	for _, a := range slices.Concat(change.Opened, both) {
		ends = append(ends, End{Addr: a})
	}
	for _, a := range slices.Concat(change.Answered, both) {
		ends = append(ends, End{Addr: a, Ingress: true})
	}
	for _, l := range change.Links {
		ends = append(ends, End{Link: l})
	}
	return ends
}

// decideAgain makes each packet of the ends be decided until their connections are marked, and reports
// whether there was room for all. With few connections, marks follow as soon.
func (b *Blocker) decideAgain(ends []End, o *Overrides) (all bool) {
	if len(ends) == 0 || b.overrideKernel == nil {
		return len(ends) == 0
	}
	few := fewConnections(b.count)
	all = true
	for _, e := range ends {
		_, closed := b.overrides.ends[e]
		_, already := b.overrides.again[e]
		switch {
		case closed:
			continue
		case few && e.Link == "", !already && len(b.overrides.again) >= maxEnds:
			all = false
			continue
		case !already:
			o.Again = append(o.Again, e)
		}
		b.overrides.again[e] = b.listed
	}
	return all
}

// override makes the kernel apply o. It cannot while another agent writes the rules; marks decide then.
func (b *Blocker) override(ctx context.Context, o Overrides) (done bool) {
	if o.empty() {
		return true
	}
	if b.overrideKernel == nil {
		return false
	}
	if err := b.overrideKernel(ctx, o); err != nil {
		klog.FromContext(ctx).V(2).Info("Denied connections go on until they are marked", "reason", err.Error())
		return false
	}
	return true
}

// endOverrides ends the overrides of connections that filters select and that are marked now, by a
// listing l. A packet that was accepted before the override may have created its entry later, which the
// listing of againAfter finds.
func (b *Blocker) endOverrides(ctx context.Context, filters []filter, l begun) {
	before := l.at.Add(-againAfter)
	var o Overrides
	for c, since := range b.overrides.classes {
		if !since.After(before) && anySelects(filters, addrOf(c.src), addrOf(c.dst)) {
			delete(b.overrides.classes, c)
			o.Ended = append(o.Ended, c.public())
		}
	}
	for e, since := range b.overrides.ends {
		if since.IsZero() || since.After(before) || !slices.ContainsFunc(filters, e.coveredBy) {
			continue
		}
		b.overrides.ends[e] = time.Time{}
		o.Opened = append(o.Opened, e)
	}
	for e, listed := range b.overrides.again {
		if listed < l.number && slices.ContainsFunc(filters, e.coveredBy) {
			delete(b.overrides.again, e)
			o.Marked = append(o.Marked, e)
			if e.Link == "" {
				// Other software may have changed blocked ones, whose packets went on until they were decided.
				b.schedule.list(e.filter(), time.Now().Add(soonAfter))
			}
		}
	}
	b.override(ctx, o)
}

// anySelects reports whether one of filters selects all connections from src to dst.
func anySelects(filters []filter, src, dst netip.Addr) bool {
	return slices.ContainsFunc(filters, func(f filter) bool {
		switch {
		case !f.end.IsValid():
			return f.hasFamily(familyOf(src))
		case f.reply:
			return f.end == dst
		}
		return f.end == src
	})
}
