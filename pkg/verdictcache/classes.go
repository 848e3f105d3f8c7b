package verdictcache

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// classes are recorded classes, found by themselves and by their addresses.
type classes struct {
	room    int
	entries map[packet.Class]*entry
	ends    map[netip.Addr][]*entry // a class with one address as both ends is there twice
}

// entry is a recorded class.
type entry struct {
	class    packet.Class
	decision policy.Decision // the latest
	until    time.Time       // when the kernel does not remember it any more
	since    time.Time       // when the kernel began to remember it, zero if it does not or that is not known
	counted  uint64          // packets since then
	place    [2]int          // in the lists of the source and the destination
}

func newClasses(room int) classes {
	return classes{room: room, entries: make(map[packet.Class]*entry), ends: make(map[netip.Addr][]*entry)}
}

// get returns nil if class is not recorded.
func (s *classes) get(class packet.Class) *entry { return s.entries[class] }

// add records class, which is not recorded. It returns nil if there is no room, or if one
// of its addresses has its share of it.
func (s *classes) add(class packet.Class) *entry {
	most := s.room / sharePerAddress
	if len(s.entries) >= s.room || len(s.ends[class.Src]) >= most || len(s.ends[class.Dst]) >= most {
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

// removeEnd removes the entry at place of the list of addr. The last one takes its place.
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

// of returns the classes with an address in addrs, or all. One that has two of them may be
// there twice.
func (s *classes) of(addrs []netip.Addr, all bool) []packet.Class {
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

// expire removes the classes that the kernel does not remember any more.
func (s *classes) expire(now time.Time) {
	for class, e := range s.entries {
		if now.After(e.until) {
			s.remove(class)
		}
	}
}
