package clusterwatch

import (
	"math"
	"sync"
	"time"
)

// currency records when the state of the cluster was last current: when every kind was listed
// and watched.
type currency struct {
	mu    sync.Mutex
	since map[*mirror]time.Time // start of each kind's watch, zero while it is not watched
	last  time.Time             // when all were watched, zero if they never were
}

func newCurrency() *currency { return &currency{since: map[*mirror]time.Time{}} }

// add registers m as a mirror that watches a kind.
func (c *currency) add(m *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note()
	c.since[m] = time.Time{}
}

// set records whether the kind of m is watched.
func (c *currency) set(m *mirror, watched bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if watched == !c.since[m].IsZero() {
		return
	}
	c.note()
	c.since[m] = time.Time{}
	if watched {
		c.since[m] = time.Now()
	}
}

// note updates last. It is called with the mutex held, before a change of since.
func (c *currency) note() {
	if c.current() {
		c.last = time.Now()
	}
}

// current reports whether all kinds are watched. It is called with the mutex held.
func (c *currency) current() bool {
	for _, since := range c.since {
		if since.IsZero() {
			return false
		}
	}
	return len(c.since) > 0
}

// watched reports whether the kind of m is watched.
func (c *currency) watched(m *mirror) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.since[m].IsZero()
}

// restore records when the saved state was current.
func (c *currency) restore(known time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = known
}

// known returns when the state was last known to be current.
func (c *currency) known() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current() {
		return time.Now()
	}
	return c.last
}

// age returns how many seconds ago the state was last known to be current.
func (c *currency) age() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.current():
		return 0
	case c.last.IsZero():
		return math.Inf(1)
	}
	return time.Since(c.last).Seconds()
}
