package verdictcache

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// classes are recorded classes, indexed by class and by address.
type classes struct {
	room    int
	entries map[packet.Class]*entry
	ends    map[netip.Addr][]*entry // a class whose source is also its destination is listed twice
}

// entry is a recorded class.
type entry struct {
	class    packet.Class
	decision policy.Decision // the latest decision
	until    time.Time       // when the kernel no longer remembers it
	since    time.Time       // when the kernel began to remember it, zero if unknown or not remembered
	counted  uint64          // packets since then
	place    [2]int          // index in the lists of the source and the destination
}

func newClasses(room int) classes {
	return classes{room: room, entries: make(map[packet.Class]*entry), ends: make(map[netip.Addr][]*entry)}
}

// get returns nil if class is not recorded.
func (s *classes) get(class packet.Class) *entry { return s.entries[class] }

// add records class, which must not be recorded yet. It returns nil if there is no room, or
// if one of its addresses has used its share.
func (s *classes) add(class packet.Class) *entry {
	share := s.room / sharePerAddress
	if len(s.entries) >= s.room || len(s.ends[class.Src]) >= share || len(s.ends[class.Dst]) >= share {
		return nil
	}
	e := &entry{class: class}
	s.entries[class] = e
	for i, addr := range e.addrs() {
		e.place[i] = len(s.ends[addr])
		s.ends[addr] = append(s.ends[addr], e)
	}
	return e
}

func (s *classes) getOrAdd(class packet.Class) *entry {
	if e := s.get(class); e != nil {
		return e
	}
	return s.add(class)
}

func (e *entry) addrs() [2]netip.Addr { return [2]netip.Addr{e.class.Src, e.class.Dst} }

func (s *classes) remove(class packet.Class) {
	e := s.entries[class]
	if e == nil {
		return
	}
	delete(s.entries, class)
	for i, addr := range e.addrs() {
		s.removeEnd(addr, e.place[i])
	}
}

// removeEnd removes the entry at index place from the list of addr and moves the last one
// there.
func (s *classes) removeEnd(addr netip.Addr, place int) {
	list := s.ends[addr]
	last := len(list) - 1
	moved := list[last]
	list[place], list[last] = moved, nil
	for i, a := range moved.addrs() {
		if a == addr && moved.place[i] == last {
			moved.place[i] = place
		}
	}
	if last == 0 {
		delete(s.ends, addr)
		return
	}
	s.ends[addr] = list[:last]
}

// withAddrs returns the classes with an address in addrs, or all classes. A class with two
// addresses in addrs may be returned twice.
func (s *classes) withAddrs(addrs []netip.Addr, all bool) []packet.Class {
	var found []packet.Class
	if all {
		for class := range s.entries {
			found = append(found, class)
		}
		return found
	}
	for _, addr := range addrs {
		for _, e := range s.ends[addr] {
			found = append(found, e.class)
		}
	}
	return found
}

// expire removes the classes that the kernel no longer remembers.
func (s *classes) expire(now time.Time) {
	for class, e := range s.entries {
		if now.After(e.until) {
			s.remove(class)
		}
	}
}
