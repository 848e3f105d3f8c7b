package httpserver

import (
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// memory remembers a value and a time for each of a bounded number of keys. A further key replaces
// the one that was set longest ago.
type memory[K comparable, V any] struct {
	most    int
	keepFor time.Duration
	items   map[K]item[V]
}

type item[V any] struct {
	value V
	at    time.Time
}

func newMemory[K comparable, V any](most int, keepFor time.Duration) memory[K, V] {
	return memory[K, V]{most: most, keepFor: keepFor, items: map[K]item[V]{}}
}

func (m *memory[K, V]) set(key K, value V) {
	if _, known := m.items[key]; !known && len(m.items) >= m.most {
		m.forgetOldest()
	}
	m.items[key] = item[V]{value, time.Now()}
}

func (m *memory[K, V]) forgetOldest() {
	var oldest K
	var at time.Time
	for key, i := range m.items {
		if at.IsZero() || i.at.Before(at) {
			oldest, at = key, i.at
		}
	}
	delete(m.items, oldest)
}

// get returns what was set for a key and when, the zero item if that is too long ago.
func (m *memory[K, V]) get(key K) item[V] {
	if i := m.items[key]; time.Since(i.at) < m.keepFor {
		return i
	}
	return item[V]{}
}

// provers knows from which addresses keys were proved lately. A key has one address: whoever has one
// key and many addresses makes none of other keys be forgotten.
type provers struct {
	mu      sync.Mutex
	byKey   memory[key, proof]
	address map[netip.Addr]key // that was proved there last
}

// proof is where a key was proved last, and for which server name, of which a client has made a secret.
type proof struct {
	at   netip.Addr
	name [sha256.Size]byte
}

func newProvers() *provers {
	return &provers{byKey: newMemory[key, proof](bounds.KnownKeys, bounds.KnownFor), address: map[netip.Addr]key{}}
}

// proved records that a client has proved a key.
func (p *provers) proved(k key, by proof) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byKey.set(k, by)
	p.address[by.at] = k
	if len(p.address) > len(p.byKey.items) {
		for a, k := range p.address {
			if p.byKey.items[k].value.at != a {
				delete(p.address, a)
			}
		}
	}
}

// at reports whether a key was proved lately from an address.
func (p *provers) at(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, known := p.address[a]
	return known && p.byKey.get(k).value.at == a
}

// named returns the key that was proved lately for a server name.
func (p *provers) named(name string) (k key, known bool) {
	if name == "" {
		return k, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	hash := sha256.Sum256([]byte(name))
	for k := range p.byKey.items {
		if p.byKey.get(k).value.name == hash {
			return k, true
		}
	}
	return k, false
}
