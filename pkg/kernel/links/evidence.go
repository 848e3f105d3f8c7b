package links

import (
	"net/netip"
	"slices"
)

// Evidence says whether the interfaces that a network plugin has made for a pod lead to its addresses.
type Evidence uint8

const (
	// NoEvidence means that no interface is named or known, or that no route proves anything: pods at a
	// bridge have no routes of their own.
	NoEvidence Evidence = iota
	// Refuted means that an interface is gone, or that the node sends to an address by another one.
	Refuted
	// Proven means that each address has a route of its own through a named interface.
	Proven
)

// evidence evaluates the links with these names, of which each must exist.
func (l Links) evidence(names []string, addrs []netip.Addr) Evidence {
	if l == nil || len(names) == 0 {
		return NoEvidence
	}
	var named []*Link
	for _, link := range l {
		if slices.Contains(names, link.Name) {
			named = append(named, link)
		}
	}
	if len(named) < len(names) {
		return Refuted
	}
	proven := true
	for _, addr := range addrs {
		switch l.leadTo(named, addr) {
		case Refuted:
			return Refuted
		case NoEvidence:
			proven = false
		}
	}
	if proven && len(addrs) > 0 {
		return Proven
	}
	return NoEvidence
}

// leadTo evaluates one address. Only direct routes to it alone prove something: others may lead to all pods
// of the node, or come from a pod.
func (l Links) leadTo(named []*Link, addr netip.Addr) Evidence {
	direct := func(link *Link) bool { return slices.Contains(link.Direct, addr) }
	if slices.ContainsFunc(named, direct) {
		return Proven
	}
	for _, link := range l {
		if direct(link) {
			return Refuted
		}
	}
	// The interface of another pod, whose name may have been used again.
	if slices.ContainsFunc(named, func(link *Link) bool { return link.hasPodOf(addr) && !link.reaches(addr) }) {
		return Refuted
	}
	return NoEvidence
}

// hasPodOf reports whether the link is a pair with a direct route to an address of the family of addr.
func (l *Link) hasPodOf(addr netip.Addr) bool {
	return l.isPair() && slices.ContainsFunc(l.Direct, func(a netip.Addr) bool { return a.Is4() == addr.Is4() })
}

// Evidence evaluates the interfaces with these names, which a network plugin has made for a pod with these
// addresses, by what was read last. known is false before the first successful read.
func (w *Watcher) Evidence(names []string, addrs []netip.Addr) (e Evidence, known bool) {
	w.mu.Lock()
	links := w.links
	w.mu.Unlock()
	return links.evidence(names, addrs), links != nil
}
