package policy

import (
	"sync"

	"github.com/gaissmai/bart"
)

const (
	// scanLimit is the most rules that are asked one by one. Longer chains
	// remember a program for each peer, which costs about as much.
	scanLimit = 16
	// maxPrograms bounds what one chain remembers, at a few hundred bytes each.
	// Beyond it everything is forgotten and made anew as it is asked for.
	maxPrograms = 2048
)

// memory holds the programs of a long chain. They follow from the chain and the
// endpoints, which never change, so that remembering them cannot be observed.
type memory struct {
	once   sync.Once
	named  bool            // some rule has a named port: programs depend on the destination
	blocks bart.Table[int] // all prefixes and holes, and the place that each is
	places int             // how many were given out

	mu       sync.RWMutex
	programs map[meeting]*program
}

// meeting is what a program depends on.
type meeting struct {
	peer  *Endpoint // nil for an address that is no known pod's
	dst   *Endpoint // nil unless named
	host  *Host     // nil for an address that is no node's
	names *Names    // nil for an address that was not learned
	// place is the smallest block around the peer's address, 0 for none. All
	// addresses of one place are in the same blocks and the same holes.
	place int
}

// program returns the program for f, from memory if it is there.
func (c *Chain) program(f *flow) *program {
	m := &c.memory
	m.once.Do(func() { m.prepare(c.Rules) })
	key := meeting{peer: f.peer, host: f.host, names: f.names}
	if m.named {
		key.dst = f.dst
	}
	key.place, _ = m.blocks.Lookup(f.peerAddr)
	m.mu.RLock()
	p := m.programs[key]
	m.mu.RUnlock()
	if p == nil {
		p = c.newProgram(f)
		m.remember(key, p)
	}
	return p
}

func (m *memory) remember(key meeting, p *program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.programs == nil || len(m.programs) >= maxPrograms {
		m.programs = make(map[meeting]*program)
	}
	m.programs[key] = p
}

// prepare reads off the rules what programs depend on.
func (m *memory) prepare(rules []Rule) {
	for i := range rules {
		for _, p := range rules[i].Ports {
			m.named = m.named || p.Name != ""
		}
		for _, p := range rules[i].Peers {
			for _, b := range p.Blocks {
				m.add(b)
			}
		}
	}
}

// add makes the block's prefix and its holes places of their own.
func (m *memory) add(b Block) {
	m.places++
	m.blocks.Insert(b.Prefix, m.places)
	for _, hole := range b.Except {
		m.places++
		m.blocks.Insert(hole, m.places)
	}
}
