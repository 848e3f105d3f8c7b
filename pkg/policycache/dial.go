package policycache

import (
	"context"
	"net"
	"time"
)

// readInterval is the least time between two reads of a connection that has
// nothing more to read. It is a quarter of what snapshots wait for each other in
// pkg/agent.
const readInterval = 5 * time.Millisecond

// Dial connects to an API server, for rest.Config.Dial. While a cluster changes a
// thousand times each second, an agent that woke for every change would spend more
// on waking than on the changes. What is read from the connection is therefore
// read 200 times a second at most; the first change after a quiet time does not
// wait, nor does anything while more is there than fits into one read.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	// As client-go dials where nothing else is asked for.
	conn, err := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &pacedConn{Conn: conn}, nil
}

// pacedConn is read by one goroutine at a time.
type pacedConn struct {
	net.Conn
	next time.Time // no read before
}

func (c *pacedConn) Read(p []byte) (int, error) {
	if !c.next.IsZero() {
		time.Sleep(time.Until(c.next))
	}
	n, err := c.Conn.Read(p)
	c.next = time.Time{}
	if n < len(p) {
		c.next = time.Now().Add(readInterval)
	}
	return n, err
}
