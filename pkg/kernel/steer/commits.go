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
	process    string // name of the committing process
	pid        uint32 // of the committing thread, in the initial PID namespace
	touched    bool   // the commit changed our table
	port       uint32 // of the committing netlink socket
	own        bool   // the socket is ours
	// lost stands for an unknown number of lost notifications. The other fields are not set.
	lost bool
}

// notificationWait bounds how long a write waits for the notification of an earlier commit. The
// kernel sends notifications before a commit ends, so only the goroutine that reads them can be
// late.
const notificationWait = 100 * time.Millisecond

// commits distinguishes commits by other processes from our own. Notifications contain the port of
// the committing netlink socket, which is unique in the network namespace.
type commits struct {
	mu        sync.Mutex
	listening bool
	blind     bool          // notifications are missing between seen and the next one
	seen      uint32        // the last generation notified
	foreign   uint32        // all commits after this generation up to seen are our own
	touched   uint32        // no other process has changed the table after this generation up to seen
	advanced  chan struct{} // closed when a field above changes, nil if nothing waits for it
	lost      int           // how often notifications were lost since the last verification
	external  int           // commits by other processes to our table since the last verification
	last      commit        // the latest of these external commits
}

// later reports whether generation a comes after b. Generations wrap around.
func later(a, b uint32) bool { return int32(a-b) > 0 }

// consecutive reports whether there was exactly one commit between two generations. The kernel skips
// generation 0.
func consecutive(before, after uint32) bool { return after-before == 1 || before+1 == 0 && after == 1 }

// started records that notifications begin, at first or after an interruption.
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

// stopped records that notifications end.
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

// notified records a commit and reports whether the table must be verified. It must be called in
// the order of generations.
func (c *commits) notified(n commit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wake()
	if n.lost {
		c.lost++
		c.blind = true
		return true
	}
	if c.blind || !consecutive(c.seen, n.generation) {
		// Earlier commits are unknown.
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

// own reports whether all commits after one generation up to another are our own.
func (c *commits) own(after, upTo uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening && !c.blind && c.seen == upTo && !later(c.foreign, after)
}

// unchanged returns the latest generation for which it is certain that no other process has changed the
// table between since and it.
func (c *commits) unchanged(since uint32) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listening || c.blind || later(c.touched, since) || !later(c.seen, since) {
		return since
	}
	return c.seen
}

// wait waits until all commits up to a generation are notified, but no longer than notificationWait.
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

// notifiedUpTo reports whether all commits up to a generation are notified, after wait. If no
// notification has come since the subscription, there was no commit.
func (c *commits) notifiedUpTo(generation uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening && (c.blind || !later(generation, c.seen))
}

// unverified counts the events since the table was last verified.
type unverified struct {
	lost, external int
	last           commit
}

func (d unverified) any() bool { return d.lost > 0 || d.external > 0 }

// error returns nil if there is nothing to verify.
func (d unverified) error() error {
	switch {
	case d.external > 0:
		return fmt.Errorf("another process (%s, pid %d) changed the table, which is not verified yet", d.last.process, d.last.pid)
	case d.lost > 0:
		return errors.New("nftables notifications were lost, and the table is not verified yet")
	}
	return nil
}

// unverified returns the events since the table was last verified.
func (c *commits) unverified() unverified {
	c.mu.Lock()
	defer c.mu.Unlock()
	return unverified{c.lost, c.external, c.last}
}

// verified subtracts d: the table was read after unverified returned d, and is correct.
func (c *commits) verified(d unverified) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost -= d.lost
	c.external -= d.external
}
