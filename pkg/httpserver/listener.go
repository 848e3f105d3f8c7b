package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
)

// listener closes connections that have no place in the share of their clients.
type listener struct {
	net.Listener
	pods         Pods
	ours, others *share // of this node's pods, and of all other clients
}

// Accept waits for a connection that has a place.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if sameMachine(clientOf(conn).Unmap(), conn.LocalAddr()) {
			return conn, nil
		}
		who, ours := identify(clientOf(conn), l.pods)
		share := l.others
		if ours {
			share = l.ours
		}
		if admitted := share.admit(conn, who); admitted != nil {
			return admitted, nil
		}
		_ = conn.Close()
	}
}

// clientOf returns the address of a client, with the interface if it is link-local.
func clientOf(conn net.Conn) netip.Addr {
	tcp, _ := conn.RemoteAddr().(*net.TCPAddr)
	return tcp.AddrPort().Addr() // of a nil TCPAddr the zero Addr
}

// client is what a client cannot choose: the pod that it is, or else the network that it has
// any number of addresses of.
type client struct {
	pod     string
	network netip.Prefix
	link    string // the interface, of link-local addresses
}

// identify returns the client at addr, and whether it is a pod of this node. Link-local
// addresses count as those of pods: any number of them can be used by each pod, and nothing
// else needs them.
func identify(addr netip.Addr, pods Pods) (c client, ours bool) {
	link := addr.Zone()
	addr = addr.Unmap().WithZone("")
	if pods != nil {
		c.pod, ours = pods(addr)
	}
	if c.pod != "" {
		return c, ours
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
	return c, ours || addr.IsLinkLocalUnicast()
}

// connection is one that counts for a share.
type connection struct {
	net.Conn
	share  *share
	holder *holder
	busy   bool               // while a request is answered; share.mu guards it
	cancel context.CancelFunc // ends what is done for it, nil before the server has it
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.share.remove(c)
	return c.Conn.Close()
}

// wait waits for the turn of the client at p.
func (c *connection) wait(ctx context.Context, p *pace) error {
	select {
	case c.holder.turn <- struct{}{}:
		defer func() { <-c.holder.turn }()
		return p.wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counted returns the connection that counts for a share behind conn, nil if there is none.
func counted(conn net.Conn) *connection {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, _ := conn.(*connection)
	return c
}

type connectionKey struct{}

// withConnection returns a context for what is done for conn, which ends with it.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	c := counted(conn)
	if c == nil {
		return ctx
	}
	ctx, c.cancel = context.WithCancel(ctx)
	return context.WithValue(ctx, connectionKey{}, c)
}

// connectionOf returns the connection of a context of withConnection, nil if it does not count.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}
