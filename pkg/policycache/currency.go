package policycache

import (
	"math"
	"sync"
	"time"
)

// currency knows when the state of the cluster was last known to be current: when every
// kind had been listed and was being watched.
type currency struct {
	mu    sync.Mutex
	since map[*mirror]time.Time // since when each kind is being watched, zero while it is not
	last  time.Time             // when all were watched, zero if they never were
}

func newCurrency() *currency { return &currency{since: map[*mirror]time.Time{}} }

// add notes that m is meant to watch a kind.
func (c *currency) add(m *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note()
	c.since[m] = time.Time{}
}

// forget notes that m is not meant to watch any more.
func (c *currency) forget(m *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note()
	delete(c.since, m)
}

// set notes whether the kind of m is being watched. It does nothing if m is forgotten: requests
// of a Reflector may outlast it.
func (c *currency) set(m *mirror, watched bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, meant := c.since[m]
	if !meant || watched == !since.IsZero() {
		return
	}
	c.note()
	if c.since[m] = (time.Time{}); watched {
		c.since[m] = time.Now()
	}
}

// note is called with the mutex held, before a change of since.
func (c *currency) note() {
	if c.current() {
		c.last = time.Now()
	}
}

// current reports whether all kinds are being watched. It is called with the mutex held.
func (c *currency) current() bool {
	for _, since := range c.since {
		if since.IsZero() {
			return false
		}
	}
	return len(c.since) > 0
}

// watchedFor returns how long the kind of m has been watched, 0 if it is not.
func (c *currency) watchedFor(m *mirror) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.since[m]
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
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
