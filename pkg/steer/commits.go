package steer

import (
	"fmt"
	"sync"
)

// commit is one to nftables in this network namespace, by anybody.
type commit struct {
	generation uint32
	process    string // who made it
	pid        uint32 // in the first PID namespace
	touched    bool   // it is about our table
	// lost is set alone: notifications were lost, nobody knows which.
	lost bool
}

// commits tells the commits of others from ours. The kernel says in a notification
// which process made one, but names can be borrowed and process numbers differ
// between PID namespaces. So ours are told by their generation, which is read before
// and after each write. Whatever remains in doubt counts as somebody else's.
type commits struct {
	mu        sync.Mutex
	listening bool
	seen      uint32 // the last generation notified
	writes    []write
	unknown   int    // how often notifications were lost, since the last verification
	foreign   int    // commits of others to our table, since the last verification
	last      commit // of those
}

// write is a write of ours: one of the generations after from, up to to, is its
// commit.
type write struct {
	from, to uint32
	open     bool     // to is not known yet
	touched  []commit // of these generations, about our table
}

// later reports whether generation a is behind b, which wrap.
func later(a, b uint32) bool { return int32(a-b) > 0 }

// started is called when commits begin to be notified, also after a break.
func (c *commits) started() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening, c.writes = true, nil
	c.unknown++
}

// stopped is called when commits are not notified any more.
func (c *commits) stopped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening, c.writes = false, nil
}

// notified takes a commit, in the order of generations, and reports whether the
// table must be verified.
func (c *commits) notified(n commit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.lost {
		c.unknown++
		return true
	}
	before := c.foreign
	c.seen = n.generation
	if n.touched && !c.ascribe(n) {
		c.blame(n)
	}
	c.settle()
	return c.foreign != before
}

// ascribe adds n to the write of ours that may have made it.
func (c *commits) ascribe(n commit) bool {
	for i := range c.writes {
		w := &c.writes[i]
		if later(n.generation, w.from) && (w.open || !later(n.generation, w.to)) {
			w.touched = append(w.touched, n)
			return true
		}
	}
	return false
}

func (c *commits) blame(others ...commit) {
	for _, n := range others {
		c.foreign++
		c.last = n
	}
}

// settle decides about the writes of which all is notified. A write of ours is one
// commit to the table: if there were more, somebody else's is among them.
func (c *commits) settle() {
	for len(c.writes) > 0 && !c.writes[0].open && !later(c.writes[0].to, c.seen) {
		if touched := c.writes[0].touched; len(touched) > 1 {
			c.blame(touched...)
		}
		c.writes = c.writes[1:]
	}
}

// begin is called ahead of a write, at this generation.
func (c *commits) begin(generation uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listening {
		c.writes = append(c.writes, write{from: generation, open: true})
	}
}

// end is called behind a write, at this generation, and reports whether the table
// must be verified. A write that has failed may have been committed or not: what
// touched the table meanwhile is in doubt.
func (c *commits) end(generation uint32, failed bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.writes) == 0 || !c.writes[len(c.writes)-1].open {
		return false // commits are not notified, or not since the write began
	}
	before := c.foreign
	last := &c.writes[len(c.writes)-1]
	if failed {
		c.blame(last.touched...)
		c.writes = c.writes[:len(c.writes)-1]
	} else {
		last.to, last.open = generation, false
	}
	c.settle()
	return c.foreign != before
}

// doubts is a state of commits, to be verified.
type doubts struct {
	unknown, foreign int
	last             commit
}

func (d doubts) any() bool { return d.unknown > 0 || d.foreign > 0 }

// error is nil without doubts.
func (d doubts) error() error {
	switch {
	case d.foreign > 0:
		return fmt.Errorf("another process (%s, pid %d) changed the table, which is not verified yet", d.last.process, d.last.pid)
	case d.unknown > 0:
		return fmt.Errorf("notifications of nftables were lost and the table is not verified yet")
	}
	return nil
}

// doubts returns what has been in doubt since the last verification.
func (c *commits) doubts() doubts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return doubts{c.unknown, c.foreign, c.last}
}

// verified removes d: the table was read after d was taken, and is right.
func (c *commits) verified(d doubts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown -= d.unknown
	c.foreign -= d.foreign
}
