package apiconn

import (
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A connection on which nothing more is waiting is read at most readBurst times in a row,
// and 50 times a second in the long run. While a cluster changes a thousand times each
// second, an agent that woke for every change would spend more on waking than on the
// changes: what is read together makes one snapshot. Fewer than 50 changes a second do not
// wait, nor does a list.
const (
	readInterval = 20 * time.Millisecond
	readBurst    = 25
)

// Listing suspends the pace while a list is in progress, until end is called.
func (c *Connections) Listing() (end func()) {
	c.lists.Add(1)
	return sync.OnceFunc(func() { c.lists.Add(-1) })
}

func (c *Connections) reader(r io.ReadCloser) *pacedReader {
	closed := make(chan struct{})
	return &pacedReader{
		ReadCloser:  r,
		connections: c,
		limit:       rate.NewLimiter(rate.Every(readInterval), readBurst),
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
	limit       *rate.Limiter
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
	if n < len(p) && r.connections.lists.Load() == 0 {
		now := time.Now()
		r.next = now.Add(r.limit.ReserveN(now, 1).DelayFrom(now))
	}
	return n, err
}

func (r *pacedReader) Close() error {
	r.close()
	return r.ReadCloser.Close()
}
