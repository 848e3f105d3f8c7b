package policycache

import (
	"math"
	"sync"
	"time"
)

// currency knows when the state of the cluster was last known to be current: when every
// kind had been listed and was being watched.
type currency struct {
	mu     sync.Mutex
	behind map[*mirror]bool // the kinds that are not watched
	last   time.Time        // when all were watched, zero if they never were
}

func newCurrency() *currency { return &currency{behind: map[*mirror]bool{}} }

// set notes whether the kind of m is being watched.
func (c *currency) set(m *mirror, watched bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.behind) == 0 {
		c.last = time.Now()
	}
	if watched {
		delete(c.behind, m)
	} else {
		c.behind[m] = true
	}
}

// forget notes that m watches no more, and is not meant to.
func (c *currency) forget(m *mirror) { c.set(m, true) }

// isBehind reports whether m is meant to watch and does not.
func (c *currency) isBehind(m *mirror) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.behind[m]
}

// restore notes when a state that was saved was known to be current.
func (c *currency) restore(known time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = known
}

// known returns when the state was last known to be current.
func (c *currency) known() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.behind) == 0 {
		return time.Now()
	}
	return c.last
}

// age returns how many seconds ago the state was last known to be current.
func (c *currency) age() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.behind) == 0:
		return 0
	case c.last.IsZero():
		return math.Inf(1)
	}
	return time.Since(c.last).Seconds()
}
