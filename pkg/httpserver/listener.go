package httpserver

import (
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// listener closes connections beyond the limits as soon as they are accepted.
type listener struct {
	net.Listener
	refused prometheus.Counter

	mu   sync.Mutex
	all  int
	open map[netip.Addr]int // by client; without entries of 0
}

// Accept waits for a connection within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn)
		if sameMachine(client, conn.LocalAddr()) {
			return conn, nil
		}
		if l.take(client) {
			return &connection{Conn: conn, leave: sync.OnceFunc(func() { l.leave(client) })}, nil
		}
		l.refused.Inc()
		_ = conn.Close()
	}
}

func clientOf(conn net.Conn) netip.Addr {
	tcp, _ := conn.RemoteAddr().(*net.TCPAddr)
	return tcp.AddrPort().Addr().Unmap() // of a nil TCPAddr the zero Addr
}

func (l *listener) take(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= maxConnections || l.open[client] >= maxPerClient {
		return false
	}
	l.all++
	l.open[client]++
	return true
}

func (l *listener) leave(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.open[client]--; l.open[client] == 0 {
		delete(l.open, client)
	}
}

// connection no longer counts for the limits once it is closed.
type connection struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *connection) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
