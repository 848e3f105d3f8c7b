package apiconn

import (
	"io"
	"net"
	"sync"
	"time"
)

// In a cluster with a thousand changes a second, an agent that woke for every change would
// spend more time on waking than on the changes. Changes that are read together make one
// snapshot, so a connection without pending data is not read for a pause. Lists, and up to
// calmRate changes a second, do not wait. Above calmRate the pause grows with the rate, up to
// maxPause at busyRate.
const (
	calmRate = 100
	busyRate = 200
	maxPause = 20 * time.Millisecond
)

// pause returns how long a connection is not read after it was drained.
func pause(changesPerSecond float64) time.Duration {
	share := (changesPerSecond - calmRate) / (busyRate - calmRate)
	return time.Duration(min(max(share, 0), 1) * float64(maxPause))
}

// Listing suspends the pace while a list is in progress, until end is called.
func (c *Connections) Listing() (end func()) {
	c.lists.Add(1)
	return sync.OnceFunc(func() { c.lists.Add(-1) })
}

// Changed counts a received change, unless it is part of a list. If it is never called,
// connections are read as data arrives.
func (c *Connections) Changed() {
	if c.lists.Load() > 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes.Add(time.Now(), 1)
}

// pause returns the current pause between reads.
func (c *Connections) pause() time.Duration {
	if c.lists.Load() > 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return pause(c.changes.Add(time.Now(), 0))
}

func (c *Connections) reader(r io.ReadCloser) *pacedReader {
	closed := make(chan struct{})
	return &pacedReader{
		ReadCloser:  r,
		connections: c,
		closed:      closed,
		close:       sync.OnceFunc(func() { close(closed) }),
	}
}

type pacedConn struct {
	net.Conn
	paced *pacedReader
}

func (c *pacedConn) Read(p []byte) (int, error) { return c.paced.Read(p) }
func (c *pacedConn) Close() error               { return c.paced.Close() }

// pacedReader is read by one goroutine and may be closed by any.
type pacedReader struct {
	io.ReadCloser
	connections *Connections
	next        time.Time // no read before
	closed      chan struct{}
	close       func()
}

func (r *pacedReader) Read(p []byte) (int, error) {
	if d := time.Until(r.next); d > 0 {
		select {
		case <-time.After(d):
		case <-r.closed:
		}
	}
	n, err := r.ReadCloser.Read(p)
	r.next = time.Time{}
	if n < len(p) {
		r.next = time.Now().Add(r.connections.pause())
	}
	return n, err
}

func (r *pacedReader) Close() error {
	r.close()
	return r.ReadCloser.Close()
}
