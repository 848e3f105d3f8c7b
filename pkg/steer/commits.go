package steer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// commit is a commit to nftables in this network namespace, by any process.
type commit struct {
	generation uint32
	process    string // that committed
	pid        uint32 // of the thread, in the first PID namespace
	touched    bool   // it changed our table
	port       uint32 // of the netlink socket that committed
	own        bool   // the socket is ours
	// lost is set alone: an unknown number of notifications was lost.
	lost bool
}

// notificationWait bounds how long a write waits for the notification of a commit that was
// made before it. The kernel sends notifications before a commit ends, so only the goroutine
// that reads them can be late.
const notificationWait = 100 * time.Millisecond

// commits distinguishes commits by other processes from our own, by the port of the netlink
// socket that a notification names: no two sockets of a network namespace have the same.
type commits struct {
	mu        sync.Mutex
	listening bool
	blind     bool          // notifications are missing between seen and the next one
	seen      uint32        // the last generation notified
	foreign   uint32        // the commits after this generation, up to seen, are all our own
	touched   uint32        // and no other process has changed the table after this one
	advanced  chan struct{} // closed when anything above changes, nil if nothing waits for it
	lost      int           // how often notifications were lost since the last verification
	external  int           // commits by other processes to our table since the last verification
	last      commit        // the latest external one
}

// later reports whether generation a comes after b. Generations wrap.
func later(a, b uint32) bool { return int32(a-b) > 0 }

// alone reports whether there was one commit between two generations. There is no generation 0.
func alone(before, after uint32) bool { return after-before == 1 || before+1 == 0 && after == 1 }

// started is called when notifications begin, also after an interruption.
func (c *commits) started() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening, c.blind = true, true
	c.lost++
	c.wake()
}

// notifying reports whether commits are notified.
func (c *commits) notifying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening
}

// stopped is called when notifications end.
func (c *commits) stopped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening = false
	c.wake()
}

func (c *commits) wake() {
	if c.advanced != nil {
		close(c.advanced)
		c.advanced = nil
	}
}

// notified records a commit, in order of generations, and reports whether the table
// must be verified.
func (c *commits) notified(n commit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wake()
	if n.lost {
		c.lost++
		c.blind = true
		return true
	}
	if c.blind || !alone(c.seen, n.generation) {
		// What was committed before is not known.
		c.foreign, c.touched = n.generation-1, n.generation-1
	}
	if !n.own {
		c.foreign = n.generation
		if n.touched || c.blind {
			c.touched = n.generation
		}
	}
	c.seen, c.blind = n.generation, false
	if n.own || !n.touched {
		return false
	}
	c.external++
	c.last = n
	return true
}

// own reports whether all commits after a generation, up to another one, are our own.
func (c *commits) own(after, upTo uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening && !c.blind && c.seen == upTo && !later(c.foreign, after)
}

// unchanged returns the last generation up to which it is known that no other process has
// changed the table after since.
func (c *commits) unchanged(since uint32) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listening || c.blind || later(c.touched, since) || !later(c.seen, since) {
		return since
	}
	return c.seen
}

// wait waits until all commits up to a generation are notified, as long as that can be
// expected.
func (c *commits) wait(ctx context.Context, upTo uint32) {
	ctx, cancel := context.WithTimeout(ctx, notificationWait)
	defer cancel()
	for {
		c.mu.Lock()
		if !c.listening || !c.blind && !later(upTo, c.seen) {
			c.mu.Unlock()
			return
		}
		if c.advanced == nil {
			c.advanced = make(chan struct{})
		}
		advanced := c.advanced
		c.mu.Unlock()
		select {
		case <-advanced:
		case <-ctx.Done():
			return
		}
	}
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
