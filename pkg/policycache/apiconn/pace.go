package apiconn

import (
	"io"
	"net"
	"sync"
	"time"
)

// While a cluster changes a thousand times each second, an agent that woke for every change
// would spend more on waking than on the changes: what is read together makes one snapshot.
// So a connection on which nothing more is waiting is left alone for a while. Up to calmRate
// changes a second do not wait, nor does a list. Above, the pause grows with the rate, up to
// maxPause at busyRate.
const (
	calmRate = 100
	busyRate = 200
	maxPause = 20 * time.Millisecond
)

// pause returns how long a connection is left alone after it was read.
func pause(changesPerSecond float64) time.Duration {
	share := (changesPerSecond - calmRate) / (busyRate - calmRate)
	return time.Duration(min(max(share, 0), 1) * float64(maxPause))
}

// Listing suspends the pace while a list is in progress, until end is called.
func (c *Connections) Listing() (end func()) {
	c.lists.Add(1)
	return sync.OnceFunc(func() { c.lists.Add(-1) })
}

// Changed counts a change that was received, unless it is part of a list. Without calls of
// it, connections are read as something arrives.
func (c *Connections) Changed() {
	if c.lists.Load() > 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes.Add(time.Now(), 1)
}

// pause returns how long connections are left alone now.
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
	if r.next = (time.Time{}); n < len(p) {
		r.next = time.Now().Add(r.connections.pause())
	}
	return n, err
}

func (r *pacedReader) Close() error {
	r.close()
	return r.ReadCloser.Close()
}
