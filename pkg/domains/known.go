package domains

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const (
	// MaxAddresses is the largest number of addresses that one pod knows, each
	// counted once for each of its names. Policies may rely on a hundred addresses
	// for a name; this is room for twenty such names, and takes a megabyte if all
	// names are as long as possible.
	MaxAddresses = 2048
	// maxNames is the largest number of names of one address: evaluating a packet
	// compares all of them.
	maxNames = 64
)

// known holds what one pod has learned. Its methods may be called from any
// goroutine.
type known struct {
	evicted func() // is called for each address or name that is evicted before it expires

	mu     sync.Mutex
	addrs  recent[netip.Addr, *address]
	names  map[string]*name
	leases int // of all addresses
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
	return &known{evicted: evicted, addrs: newRecent[netip.Addr, *address](), names: make(map[string]*name)}
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

// learn adds a name to addr until the given time. It never shortens the lifetime of
// a name.
func (k *known) learn(text string, addr netip.Addr, now, until time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.addrs.get(addr)
	if !ok {
		a = &address{addr: addr}
		k.addrs.put(addr, a)
	}
	k.addrs.use(addr)
	if i := slices.IndexFunc(a.leases, func(l lease) bool { return l.name.text == text }); i < 0 {
		k.begin(a, text, until)
	} else if until.After(a.leases[i].until) {
		a.leases[i].until = until
		a.soonest = a.first().until
	}
	k.shrink(now)
}

// begin adds a name to a.
func (k *known) begin(a *address, text string, until time.Time) {
	n := k.names[text]
	if n == nil {
		n = &name{text: text, alone: &policy.Names{text}}
		k.names[text] = n
	}
	n.leases++
	k.leases++
	a.leases = append(a.leases, lease{n, until})
	if len(a.leases) > maxNames {
		k.end(a, a.first())
		k.evicted()
	}
	a.describe()
}

// end removes a name from a.
func (k *known) end(a *address, l lease) {
	a.leases = slices.DeleteFunc(a.leases, func(other lease) bool { return other.name == l.name })
	k.leases--
	if l.name.leases--; l.name.leases == 0 {
		delete(k.names, l.name.text)
	}
}

// expire removes the names of a that have expired, and a itself with the last of
// them.
func (k *known) expire(a *address, now time.Time) {
	if now.Before(a.soonest) {
		return
	}
	for len(a.leases) > 0 && !now.Before(a.first().until) {
		k.end(a, a.first())
	}
	a.describe()
	if a.names == nil {
		k.addrs.remove(a.addr)
	}
}

// shrink forgets addresses, the least recently used first: those that have expired,
// and then as many as exceed the bound.
func (k *known) shrink(now time.Time) {
	for {
		addr, a, ok := k.addrs.oldest()
		if !ok {
			return
		}
		k.expire(a, now)
		switch {
		case a.names == nil:
			continue
		case k.leases <= MaxAddresses:
			return
		}
		for len(a.leases) > 0 {
			k.end(a, a.leases[0])
		}
		k.addrs.remove(addr)
		k.evicted()
	}
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

// describe updates what depends on leases.
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
