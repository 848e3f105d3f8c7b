package conntrack

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// End is an address at which connections begin (egress) or end (ingress).
type End struct {
	Addr    netip.Addr
	Ingress bool
}

func (e End) filter() filter {
	if e.Ingress {
		return answeredBy(e.Addr)
	}
	return openedBy(e.Addr)
}

// Overrides change what the kernel does with packets of established connections until their marks
// follow.
type Overrides struct {
	// Denied are classes whose packets are dropped from now on. Ended are classes whose marks decide again.
	Denied, Ended []packet.Class
	// Closed are ends whose connections are dropped from now on, except those with the node itself, and of
	// an address with itself. At Opened, marks and Denied decide again.
	Closed, Opened []End
}

func (o *Overrides) empty() bool {
	return len(o.Denied)+len(o.Ended)+len(o.Closed)+len(o.Opened) == 0
}

// maxDenied bounds the classes that are overridden at the same time: a transaction with so many takes
// some 0.1 s. The connections of further ones are marked, live ones first.
const maxDenied = 1 << 13

// overrides are what the kernel drops although the marks may not say so yet.
type overrides struct {
	classes map[class]time.Time // since when
	ends    map[End]time.Time   // zero once all connections of the end are marked
}

func newOverrides() overrides {
	return overrides{classes: make(map[class]time.Time), ends: make(map[End]time.Time)}
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
			b.listAgain(e.filter(), now.Add(againAfter))
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

// deny overrides the marks of classes that are denied, as many as there is room for, and reports whether
// that was enough.
func (b *Blocker) deny(blocked []uint32, o *Overrides) (all bool) {
	now, all := time.Now(), true
	for _, i := range blocked {
		c := b.known.slots[i].class
		_, already := b.overrides.classes[c]
		switch {
		case !c.overridable() || !already && len(b.overrides.classes) >= maxDenied:
			all = false
			continue
		case !already:
			o.Denied = append(o.Denied, c.public())
		}
		b.overrides.classes[c] = now
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
	b.metrics.overridden.Set(float64(len(b.overrides.classes)))
	return true
}

// endOverrides ends the overrides of connections that filters select and that are marked now, by a
// listing that began at start. A packet that was accepted before the override may have created its entry
// later, which the listing of againAfter finds.
func (b *Blocker) endOverrides(ctx context.Context, filters []filter, start time.Time) {
	before := start.Add(-againAfter)
	var o Overrides
	for c, since := range b.overrides.classes {
		if !since.After(before) && anySelects(filters, addrOf(c.src), addrOf(c.dst)) {
			delete(b.overrides.classes, c)
			o.Ended = append(o.Ended, c.public())
		}
	}
	for e, since := range b.overrides.ends {
		covered := func(f filter) bool { return f == e.filter() || !f.end.IsValid() && f.hasFamily(familyOf(e.Addr)) }
		if since.IsZero() || since.After(before) || !slices.ContainsFunc(filters, covered) {
			continue
		}
		b.overrides.ends[e] = time.Time{}
		o.Opened = append(o.Opened, e)
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
