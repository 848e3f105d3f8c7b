package domains

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const (
	// MaxAddresses is the most addresses that are known to one pod, each counted
	// once for each of its names. A policy's author may rely on a hundred for a
	// name; this is twenty such names, and a megabyte if all names are as long as
	// names can be.
	MaxAddresses = 2048
	// maxNames is the most names of one address: evaluating a packet looks at all
	// of them.
	maxNames = 64
)

// known is what one pod has learned. Its methods may be called from any
// goroutine.
type known struct {
	evicted func() // is told of each address and name that had to go before its time

	mu     sync.Mutex
	addrs  recent[netip.Addr, *address]
	names  map[string]*name
	leases int // of all addresses
}

// address is an address under all its names.
type address struct {
	addr    netip.Addr
	names   *policy.Names // those of leases, nil for none; changes only when they do
	leases  []lease
	soonest time.Time // when the first of them ends
}

// lease is an address's right to a name.
type lease struct {
	name  *name
	until time.Time
}

// name is a name that some address has.
type name struct {
	text   string
	leases int
	// alone is shared by the addresses that have no other name: to the evaluator
	// a hundred addresses of one name are the same thing.
	alone *policy.Names
}

func newKnown(evicted func()) *known {
	return &known{evicted: evicted, addrs: newRecent[netip.Addr, *address](), names: make(map[string]*name)}
}

// find returns the names that addr has now, nil if there are none.
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

// learn gives addr a name until then. A name that it has already is not taken
// away sooner.
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

// begin gives a one name more.
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

// end takes a name away from a.
func (k *known) end(a *address, l lease) {
	a.leases = slices.DeleteFunc(a.leases, func(other lease) bool { return other.name == l.name })
	k.leases--
	if l.name.leases--; l.name.leases == 0 {
		delete(k.names, l.name.text)
	}
}

// expire takes away the names of a whose time is over, and a itself with the
// last of them.
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

// shrink forgets addresses, the least recently used first: those that have
// expired, and then as many as are too many.
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

// count returns how many addresses there are, each counted once for each of its
// names. Those that have expired may be among them.
func (k *known) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leases
}

// first returns the lease that ends first.
func (a *address) first() lease {
	return slices.MinFunc(a.leases, func(x, y lease) int { return x.until.Compare(y.until) })
}

// describe follows a change of leases.
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
