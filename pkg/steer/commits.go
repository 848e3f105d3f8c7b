package steer

import (
	"errors"
	"fmt"
	"sync"
)

// commit is a commit to nftables in this network namespace, by any process.
type commit struct {
	generation uint32
	process    string // that committed
	pid        uint32 // in the first PID namespace
	touched    bool   // it changed our table
	port       uint32 // of the netlink socket that committed
	verdicts   bool   // it changed remembered verdicts, and is our own: it came from the socket for this
	// lost is set alone: an unknown number of notifications was lost.
	lost bool
}

// commits distinguishes commits by other processes from our own. A notification names
// the process that committed, but process names can be reused and process IDs differ
// between PID namespaces. Therefore our own commits are recognized by their generation,
// which is read before and after each write. A commit that could be either counts as
// external. Commits of verdicts come from a socket that no other process can have, and are
// recognized by it.
type commits struct {
	mu        sync.Mutex
	listening bool
	seen      uint32 // the last generation notified
	ownAfter  uint32 // all generations after this one, up to seen, were notified and may be our own
	writes    []write
	lost      int    // how often notifications were lost since the last verification
	external  int    // commits by other processes to our table since the last verification
	last      commit // the latest external one
}

// write is one of our writes. Its commit has one of the generations after from, up to
// and including to.
type write struct {
	from, to uint32
	open     bool     // to is not known yet
	touched  []commit // commits to our table in these generations
}

// later reports whether generation a comes after b. Generations wrap.
func later(a, b uint32) bool { return int32(a-b) > 0 }

// started is called when notifications begin, also after an interruption.
func (c *commits) started() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening, c.writes = true, nil
	c.seen, c.ownAfter = 0, 0
	c.lost++
}

// notifying reports whether commits are notified.
func (c *commits) notifying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening
}

// own reports whether all commits after a generation, up to another one, are our own, or
// are not verified yet.
func (c *commits) own(after, upTo uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening && c.seen == upTo && !later(c.ownAfter, after)
}

// stopped is called when notifications end.
func (c *commits) stopped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening, c.writes = false, nil
}

// notified records a commit, in order of generations, and reports whether the table
// must be verified.
func (c *commits) notified(n commit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.lost {
		c.lost++
		return true
	}
	before := c.external
	gap := !alone(c.seen, n.generation)
	c.seen = n.generation
	switch {
	case n.verdicts, n.touched && c.assign(n):
		if gap {
			c.ownAfter = n.generation - 1
		}
	default:
		c.ownAfter = n.generation
		if n.touched {
			c.addExternal(n)
		}
	}
	c.settle()
	return c.external != before
}

// assign adds n to the write of ours that may have made it, and reports whether there
// is one.
func (c *commits) assign(n commit) bool {
	for i := range c.writes {
		w := &c.writes[i]
		if later(n.generation, w.from) && (w.open || !later(n.generation, w.to)) {
			w.touched = append(w.touched, n)
			return true
		}
	}
	return false
}

func (c *commits) addExternal(all ...commit) {
	for _, n := range all {
		c.external++
		c.last = n
	}
}

// settle classifies the commits of the writes whose generations were all notified. A
// write of ours makes one commit to the table. If there were more, at least one of them
// is external.
func (c *commits) settle() {
	for len(c.writes) > 0 && !c.writes[0].open && !later(c.writes[0].to, c.seen) {
		if touched := c.writes[0].touched; len(touched) > 1 {
			c.addExternal(touched...)
		}
		c.writes = c.writes[1:]
	}
}

// begin is called before a write, with the current generation.
func (c *commits) begin(generation uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listening {
		c.writes = append(c.writes, write{from: generation, open: true})
	}
}

// end is called after a write, with the current generation, and reports whether the
// table must be verified. A write that failed may have been committed or not.
// Therefore all commits to the table since begin count as external.
func (c *commits) end(generation uint32, failed bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.writes) == 0 || !c.writes[len(c.writes)-1].open {
		return false // there were no notifications when the write began, or they stopped since
	}
	before := c.external
	last := &c.writes[len(c.writes)-1]
	if failed {
		c.addExternal(last.touched...)
		c.writes = c.writes[:len(c.writes)-1]
	} else {
		last.to, last.open = generation, false
	}
	c.settle()
	return c.external != before
}

// unverified is what has happened to the table since it was last verified.
type unverified struct {
	lost, external int
	last           commit
}

func (d unverified) any() bool { return d.lost > 0 || d.external > 0 }

// error is nil if there is nothing to verify.
func (d unverified) error() error {
	switch {
	case d.external > 0:
		return fmt.Errorf("another process (%s, pid %d) changed the table, which is not verified yet", d.last.process, d.last.pid)
	case d.lost > 0:
		return errors.New("nftables notifications were lost, and the table is not verified yet")
	}
	return nil
}

// unverified returns what must be verified.
func (c *commits) unverified() unverified {
	c.mu.Lock()
	defer c.mu.Unlock()
	return unverified{c.lost, c.external, c.last}
}

// verified removes d: the table was read after d was returned, and is correct.
func (c *commits) verified(d unverified) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost -= d.lost
	c.external -= d.external
}
