package conntrack

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// class identifies connections that policies evaluate alike: everything in a first packet except
// its source port. It has no pointers, because the garbage collector would follow those of many
// classes.
type class struct {
	src, dst [16]byte
	port     uint16 // of the destination, 0 if the protocol has none
	proto    packet.Proto
	// swapped means that the kernel tracks the connections from the other end, because it picked
	// them up with a packet from dst. Policies must allow such a connection in both directions, so
	// it is in two classes.
	swapped bool
}

func classOf(p packet.Packet) class {
	return class{src: p.Src.Addr().As16(), dst: p.Dst.Addr().As16(), port: p.Dst.Port(), proto: p.Proto}
}

// swappedClassOf returns the second class of a connection that the kernel picked up with p.
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

// addrOf is the inverse of As16, because packets have no IPv4-mapped IPv6 addresses.
func addrOf(a [16]byte) netip.Addr { return netip.AddrFrom16(a).Unmap() }

// maxKnown bounds the known classes: at about 200 bytes each they take 50 MB at most.
const maxKnown = 1 << 18

// knownClasses holds the classes of established connections, indexed by class and by address. A pass drops
// those whose connections have ended, and no others: a change that comes while it lists has to find them all.
type knownClasses struct {
	room    int
	slots   []slot
	index   map[class]uint32    // position in slots
	firstOf map[[16]byte]uint32 // position of the first class of an address, plus 1
	full    bool                // a class did not fit
	passing bool                // a pass has begun, so some classes may be stale
}

// slot is a known class.
type slot struct {
	class
	// open: some connections of the class may pass. blocked: some may be blocked.
	open, blocked bool
	stale         bool      // a pass has found no connection of the class yet
	accepted      uint32    // when a packet was last accepted, see Blocker.second
	next          [2]uint32 // positions of the next class with its source and with its destination, plus 1
}

func newKnownClasses(room int) *knownClasses {
	return &knownClasses{room: room, index: make(map[class]uint32), firstOf: make(map[[16]byte]uint32)}
}

// add returns the slot of c, nil if there is no room.
func (k *knownClasses) add(c class) *slot {
	if i, ok := k.index[c]; ok {
		return &k.slots[i]
	}
	if len(k.slots) >= k.room {
		k.full = true
		return nil
	}
	i := uint32(len(k.slots))
	k.index[c] = i
	s := slot{class: c}
	s.next[0], k.firstOf[c.src] = k.firstOf[c.src], i+1
	if c.dst != c.src {
		s.next[1], k.firstOf[c.dst] = k.firstOf[c.dst], i+1
	}
	k.slots = append(k.slots, s)
	return &k.slots[i]
}

// note records the state of a connection of class c after verdict v, which holds for the whole
// class.
func (k *knownClasses) note(c class, v Verdict, isBlocked bool) {
	s := k.add(c)
	if s == nil {
		return
	}
	if s.stale {
		s.stale, s.open, s.blocked = false, false, false
	}
	switch {
	case v == Keep && isBlocked:
		s.blocked = true
	case v == Keep:
		s.open = true
	default:
		s.open, s.blocked = v.unblocks(), v.blocks()
	}
}

// eachOf calls yield with the position of each class that has addr.
func (k *knownClasses) eachOf(addr [16]byte, yield func(uint32)) {
	for i := k.firstOf[addr]; i != 0; {
		s := &k.slots[i-1]
		yield(i - 1)
		if s.src == addr {
			i = s.next[0]
		} else {
			i = s.next[1]
		}
	}
}

// beginPass makes the classes stale with no packet accepted since that second. Of the rest it forgets
// whether connections are blocked, and regards them as open: the kernel may accept more without asking.
func (k *knownClasses) beginPass(since uint32) {
	k.full, k.passing = false, true
	for i := range k.slots {
		if s := &k.slots[i]; s.accepted >= since {
			s.stale, s.open, s.blocked = false, true, false
		} else {
			s.stale = true
		}
	}
}

// makeRoom drops stale classes before their pass has ended, if those of another piece of it might not fit.
func (k *knownClasses) makeRoom() {
	if len(k.slots)+4*pieceLen > k.room {
		k.dropStale()
	}
}

// dropStale drops the classes of which a pass has found no connection. It changes the positions of others.
func (k *knownClasses) dropStale() {
	if !k.passing {
		return
	}
	old := k.slots
	k.slots, k.passing = k.slots[:0], false
	clear(k.index)
	clear(k.firstOf)
	for _, s := range old {
		if !s.stale {
			kept := k.add(s.class)
			kept.open, kept.blocked, kept.accepted = s.open, s.blocked, s.accepted
		}
	}
}
