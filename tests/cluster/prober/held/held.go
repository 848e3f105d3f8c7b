// Package held keeps connections busy, to see when they end.
package held

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Interval is how often something is sent on a connection. The time of its last answer is as exact.
const Interval = 20 * time.Millisecond

// Conn is a connection on which one goroutine sends and another one receives.
type Conn struct {
	conn     net.Conn
	ended    chan struct{}
	wg       sync.WaitGroup
	answered atomic.Pointer[time.Time] // when the last answer came
}

// Keep keeps a connection busy whose other end sends back what it gets. It returns after the first
// answer. If there is none before ctx ends, it closes the connection.
func Keep(ctx context.Context, conn net.Conn) (*Conn, error) {
	c := &Conn{conn: conn, ended: make(chan struct{})}
	first := make(chan struct{})
	c.wg.Go(c.send)
	c.wg.Go(func() { c.receive(first) })
	select {
	case <-first:
		return c, nil
	case <-ctx.Done():
		c.Close()
		return nil, fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// Silent returns how long ago the last answer came.
func (c *Conn) Silent() time.Duration { return time.Since(*c.answered.Load()) }

// Close closes the connection. TCP is reset, so that nothing is sent again later and no port stays in
// TIME_WAIT.
func (c *Conn) Close() {
	close(c.ended)
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.conn.Close()
	c.wg.Wait()
}

// send sends until the connection is closed. What cannot be sent gets no answer.
func (c *Conn) send() {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		_, _ = c.conn.Write([]byte{'.'})
		select {
		case <-c.ended:
			return
		case <-ticker.C:
		}
	}
}

// receive notes when answers come, and closes first after the first one. An ICMP error does not end a
// UDP flow.
func (c *Conn) receive(first chan<- struct{}) {
	buffer := make([]byte, 1500)
	for {
		_, err := c.conn.Read(buffer)
		if err == nil {
			if c.answered.Swap(new(time.Now())) == nil {
				close(first)
			}
			continue
		}
		if _, datagrams := c.conn.(*net.UDPConn); !datagrams {
			return
		}
		select {
		case <-c.ended:
			return
		default:
		}
	}
}
