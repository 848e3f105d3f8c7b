package podwatch

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// readInterval is the least time between two reads from where nothing more is to
// be read. What is read at once makes one snapshot.
const readInterval = 20 * time.Millisecond

// Pace makes connections to an API server for which changes come in little by
// little. While a cluster changes a thousand times each second, an agent that
// woke for every change would spend more on waking than on the changes: what is
// there is read 50 times a second at most. The first change after a quiet time
// does not wait, nor does a list of pods. Its zero value is ready.
type Pace struct {
	lists atomic.Int32 // that are under way
}

// Dial is for rest.Config.Dial.
func (p *Pace) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	// As client-go dials where nothing else is asked for.
	conn, err := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &pacedConn{conn, p.reader(conn)}, nil
}

// list suspends the pace while a list is under way, until end is called.
func (p *Pace) list() (end func()) {
	p.lists.Add(1)
	return sync.OnceFunc(func() { p.lists.Add(-1) })
}

func (p *Pace) reader(r io.ReadCloser) *pacedReader {
	closed := make(chan struct{})
	return &pacedReader{ReadCloser: r, pace: p, closed: closed, close: sync.OnceFunc(func() { close(closed) })}
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
	pace   *Pace
	next   time.Time // no read before
	closed chan struct{}
	close  func()
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
	if n < len(p) && r.pace.lists.Load() == 0 {
		r.next = time.Now().Add(readInterval)
	}
	return n, err
}

func (r *pacedReader) Close() error {
	r.close()
	return r.ReadCloser.Close()
}
