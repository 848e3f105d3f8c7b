package domains

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// MaxAddresses is the largest number of addresses that one pod knows, each counted once
	// for each of its names. Policies may rely on a hundred addresses for a name; the bound
	// has room for twenty such names, and takes a megabyte if all names have the maximum
	// length.
	MaxAddresses = 2048
	// maxNames is the largest number of names of one address: evaluating a packet
	// compares all of them.
	maxNames = 64
	// maxPast is how many names of addresses that have ended are remembered, to explain denials.
	maxPast = 128
)

// known holds what one pod has learned. Its methods may be called from any
// goroutine.
type known struct {
	evicted func() // called for each address or name that is evicted before it expires

	mu     sync.Mutex
	addrs  recent[netip.Addr, *address]
	names  map[string]*name
	leases int // of all addresses
	past   recent[binding, ended]
}

// binding is one name of one address.
type binding struct {
	addr netip.Addr
	name string
}

// ended is when and how a binding has ended.
type ended struct {
	at      time.Time
	evicted bool // else it has expired
}

// address is an address with all its names.
type address struct {
	addr    netip.Addr
	names   *policy.Names // the names of leases, nil if there are none; replaced only when they change
	leases  []lease
	soonest time.Time // when the first lease expires
}

// lease is a name of an address, until it expires.
type lease struct {
	name  *name
	until time.Time
	saved time.Time // until, as it is in the file; zero if it is not there
}

// unsaved reports whether the file should be written for this lease. It need not be written for
// each answer about a name that is asked again and again: what the file lacks is less than the
// grace period.
func (l *lease) unsaved() bool {
	return l.saved.IsZero() || l.until.Sub(l.saved).Abs() > Grace/2
}

// name is a name of one or more addresses.
type name struct {
	text   string
	leases int
	// alone is shared by all addresses that have no other name, so that the
	// evaluator treats a hundred addresses of one name as one peer.
	alone *policy.Names
}

func newKnown(evicted func()) *known {
	return &known{evicted: evicted, addrs: newRecent[netip.Addr, *address](), names: make(map[string]*name), past: newRecent[binding, ended]()}
}

// find returns the current names of addr, nil if there are none.
func (k *known) find(addr netip.Addr, now time.Time) *policy.Names {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.addrs.get(addr)
	if !ok {
		return nil
	}
	k.addrs.use(addr)
	k.expire(a, now)
	return a.names
}

// learn gives addr a name until the given time, whatever earlier answers said. It reports whether
// the file should be written.
func (k *known) learn(text string, addr netip.Addr, now, until time.Time) (unsaved bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lease(text, addr, now)
	l.until = until
	unsaved = l.unsaved()
	k.settle(addr, now)
	return unsaved
}

// restore gives addr a name of the file until the given time, unless it is known for longer.
func (k *known) restore(text string, addr netip.Addr, now, until time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lease(text, addr, now)
	if until.After(l.until) {
		l.until, l.saved = until, until
	}
	k.settle(addr, now)
}

// lease returns the lease of a name of addr, a new one without an end if there is none. The caller
// sets until and calls settle.
func (k *known) lease(text string, addr netip.Addr, now time.Time) *lease {
	a, ok := k.addrs.get(addr)
	if !ok {
		a = &address{addr: addr}
		k.addrs.put(addr, a)
	}
	k.addrs.use(addr)
	k.past.remove(binding{addr, text})
	i := slices.IndexFunc(a.leases, func(l lease) bool { return l.name.text == text })
	if i < 0 {
		k.begin(a, text, now)
		i = len(a.leases) - 1
	}
	return &a.leases[i]
}

// settle completes a change of a lease of addr.
func (k *known) settle(addr netip.Addr, now time.Time) {
	if a, ok := k.addrs.get(addr); ok {
		a.soonest = a.first().until
	}
	k.shrink(now)
}

// begin adds a name to a. If a has too many, the one that expires first is evicted.
func (k *known) begin(a *address, text string, now time.Time) {
	n := k.names[text]
	if n == nil {
		n = &name{text: text, alone: &policy.Names{text}}
		k.names[text] = n
	}
	n.leases++
	k.leases++
	if len(a.leases) == maxNames {
		k.end(a, a.first(), ended{now, true})
		k.evicted()
	}
	a.leases = append(a.leases, lease{name: n})
	a.describe()
}

// end removes a name from a and remembers how it ended.
func (k *known) end(a *address, l lease, how ended) {
	k.past.put(binding{a.addr, l.name.text}, how)
	if k.past.len() > maxPast {
		oldest, _, _ := k.past.oldest()
		k.past.remove(oldest)
	}
	a.leases = slices.DeleteFunc(a.leases, func(other lease) bool { return other.name == l.name })
	k.leases--
	l.name.leases--
	if l.name.leases == 0 {
		delete(k.names, l.name.text)
	}
}

// expire removes the expired names of a, and a itself if none is left.
func (k *known) expire(a *address, now time.Time) {
	if now.Before(a.soonest) {
		return
	}
	for len(a.leases) > 0 && !now.Before(a.first().until) {
		first := a.first()
		k.end(a, first, ended{at: first.until})
	}
	a.describe()
	if a.names == nil {
		k.addrs.remove(a.addr)
	}
}

// shrink removes addresses, the least recently used first, while they have expired or the
// bound is exceeded.
func (k *known) shrink(now time.Time) {
	for {
		addr, a, ok := k.addrs.oldest()
		if !ok {
			return
		}
		k.expire(a, now)
		switch {
		case a.names == nil: // it was removed
			continue
		case k.leases <= MaxAddresses:
			return
		}
		for len(a.leases) > 0 {
			k.end(a, a.leases[0], ended{now, true})
		}
		k.addrs.remove(addr)
		k.evicted()
	}
}

// endedFor returns the name of addr that has ended last, of names only, and how it has.
func (k *known) endedFor(addr netip.Addr, names *matcher) (name string, how ended) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for b, e := range k.past.all() {
		if b.addr == addr && e.at.After(how.at) && names.has(b.name) {
			name, how = b.name, e
		}
	}
	return name, how
}

// nameFor returns one of names that has some address, the first in alphabetical order.
func (k *known) nameFor(names *matcher) (name string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for text := range k.names {
		if names.has(text) && (!ok || text < name) {
			name, ok = text, true
		}
	}
	return name, ok
}

// count returns the number of addresses, each counted once for each of its names,
// including expired ones that were not removed yet.
func (k *known) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leases
}

// first returns the lease that expires first.
func (a *address) first() lease {
	return slices.MinFunc(a.leases, func(x, y lease) int { return x.until.Compare(y.until) })
}

// describe updates the fields that derive from leases.
func (a *address) describe() {
	switch len(a.leases) {
	case 0:
		a.names = nil
		return
	case 1:
		a.names = a.leases[0].name.alone
	default:
		names := make(policy.Names, len(a.leases))
		for i, l := range a.leases {
			names[i] = l.name.text
		}
		a.names = &names
	}
	a.soonest = a.first().until
}
