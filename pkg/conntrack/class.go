package conntrack

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// class is what connections have in common that policies evaluate alike: all of a first
// packet but its source port, of any protocol. It has no pointers: there may be many.
type class struct {
	src, dst [16]byte
	port     uint16 // of the destination, 0 if the protocol has none
	proto    packet.Proto
	// swapped is set if the kernel tracks the connections from the other end: it picked them up
	// from a packet of dst. Policies must allow these in both directions, so their
	// connections are in two classes.
	swapped bool
}

func classOf(p packet.Packet) class {
	return class{src: p.Src.Addr().As16(), dst: p.Dst.Addr().As16(), port: p.Dst.Port(), proto: p.Proto}
}

// swappedClassOf returns the second class of a connection that the kernel has picked up from p.
func swappedClassOf(p packet.Packet) class {
	c := classOf(p.Swapped())
	c.swapped = true
	return c
}

// packet returns a first packet of the class, with source port 0.
func (c class) packet() packet.Packet {
	return packet.Packet{
		Src:   netip.AddrPortFrom(addrOf(c.src), 0),
		Dst:   netip.AddrPortFrom(addrOf(c.dst), c.port),
		Proto: c.proto,
	}
}

// addrOf is the inverse of As16: no address of a packet is an IPv4-mapped IPv6 one.
func addrOf(a [16]byte) netip.Addr { return netip.AddrFrom16(a).Unmap() }

// maxKnown bounds the known classes. They occupy 50 MB at most, some 200 bytes each.
const maxKnown = 1 << 18

// known are the classes of established connections, found by themselves and by their
// addresses. Classes are only added, until a pass begins with those that may be missing in
// the kernel's table.
type known struct {
	room  int
	slots []slot
	at    map[class]uint32    // position in slots
	ends  map[[16]byte]uint32 // position of the first class of an address, plus 1
	full  bool                // a class is missing
}

// slot is a known class.
type slot struct {
	class
	// There may be connections of the class that pass, that are blocked.
	open, blocked bool
	accepted      uint32    // when a packet was accepted last, in seconds as of Blocker.second
	next          [2]uint32 // the next class of its source, of its destination, plus 1
}

func newKnown(room int) *known {
	return &known{room: room, at: make(map[class]uint32), ends: make(map[[16]byte]uint32)}
}

// add returns the slot of c, nil if there is no room.
func (k *known) add(c class) *slot {
	if i, ok := k.at[c]; ok {
		return &k.slots[i]
	}
	if len(k.slots) >= k.room {
		k.full = true
		return nil
	}
	i := uint32(len(k.slots))
	k.at[c] = i
	s := slot{class: c}
	s.next[0], k.ends[c.src] = k.ends[c.src], i+1
	if c.dst != c.src {
		s.next[1], k.ends[c.dst] = k.ends[c.dst], i+1
	}
	k.slots = append(k.slots, s)
	return &k.slots[i]
}

// note records what becomes of a connection on which the verdict is v, as it is on all
// others of its class.
func (k *known) note(c class, v Verdict, isBlocked bool) {
	s := k.add(c)
	switch {
	case s == nil:
	case v == Keep && isBlocked:
		s.blocked = true
	case v == Keep:
		s.open = true
	default:
		s.open, s.blocked = v.unblocks(), v.blocks()
	}
}

// of calls yield with the position of each class of addr.
func (k *known) of(addr [16]byte, yield func(uint32)) {
	for i := k.ends[addr]; i != 0; {
		s := &k.slots[i-1]
		yield(i - 1)
		if s.src == addr {
			i = s.next[0]
		} else {
			i = s.next[1]
		}
	}
}

// restart forgets the classes of which no packet was accepted since a second, and which
// connections of the others are blocked. The kernel may open more without asking.
func (k *known) restart(since uint32) {
	old := k.slots
	k.slots, k.full = k.slots[:0], false
	clear(k.at)
	clear(k.ends)
	for _, s := range old {
		if s.accepted >= since {
			kept := k.add(s.class)
			kept.accepted, kept.open = s.accepted, true
		}
	}
}
