package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
)

// listener closes connections for which their share has no place.
type listener struct {
	net.Listener
	pods                 Pods
	podShare, otherShare *share // for this node's pods, and for all other clients
}

// Accept waits for a connection that gets a place.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if sameMachine(clientOf(conn).Unmap(), conn.LocalAddr()) {
			return conn, nil
		}
		identity, onNode := identify(clientOf(conn), l.pods)
		share := l.otherShare
		if onNode {
			share = l.podShare
		}
		if admitted := share.admit(conn, identity); admitted != nil {
			return admitted, nil
		}
		_ = conn.Close()
	}
}

// clientOf returns the address of a client, including the interface if it is link-local.
func clientOf(conn net.Conn) netip.Addr {
	tcp, _ := conn.RemoteAddr().(*net.TCPAddr)
	return tcp.AddrPort().Addr() // a nil TCPAddr gives the zero Addr
}

// client is an identity that a client cannot choose: its pod, or else the network in which
// it may own every address.
type client struct {
	pod     string
	network netip.Prefix
	link    string // the interface for link-local addresses
}

// identify returns the client at addr and whether it is a pod of this node. Link-local
// addresses count as addresses of this node's pods, because a pod can use any number of
// them and nothing else needs them.
func identify(addr netip.Addr, pods Pods) (c client, onNode bool) {
	link := addr.Zone()
	addr = addr.Unmap().WithZone("")
	if pods != nil {
		c.pod, onNode = pods(addr)
	}
	if c.pod != "" {
		return c, onNode
	}
	bits := 64
	switch {
	case addr.Is4() && addr.IsLinkLocalUnicast():
		bits = 16
	case addr.Is4():
		bits = 32
	}
	c.network, _ = addr.Prefix(bits)
	c.link = link
	return c, onNode || addr.IsLinkLocalUnicast()
}

// connection is a connection with a place in a share.
type connection struct {
	net.Conn
	share  *share
	holder *holder
	busy   bool               // while a request is answered; guarded by share.mu
	cancel context.CancelFunc // ends work for the connection; nil until the server has it
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.share.remove(c)
	return c.Conn.Close()
}

// wait waits for the client's turn at p.
func (c *connection) wait(ctx context.Context, p *pace) error {
	select {
	case c.holder.turn <- struct{}{}:
		defer func() { <-c.holder.turn }()
		return p.wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counted returns the connection with a place that conn wraps, or nil.
func counted(conn net.Conn) *connection {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, _ := conn.(*connection)
	return c
}

type connectionKey struct{}

// withConnection returns a context that ends with conn.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	c := counted(conn)
	if c == nil {
		return ctx
	}
	ctx, c.cancel = context.WithCancel(ctx)
	return context.WithValue(ctx, connectionKey{}, c)
}

// connectionOf returns the connection of a context made by withConnection, or nil if it has
// no place in a share.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}
