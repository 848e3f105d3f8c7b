package httpserver

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/handshake"
)

// group is clients with places of their own, and with TLS a door of their own.
type group struct {
	door    *door    // nil without TLS
	places  *places  // nil for clients that stay only after they have proved a key
	provers *provers // nil for clients that prove none
}

// listener gives places to connections, with TLS after their handshakes.
type listener struct {
	net.Listener
	pods   Pods
	access *Access // nil without TLS
	config *tls.Config

	// This node, its pods and all other clients are groups. If clients prove keys, they are in askers or
	// streams after their handshakes, and also before when a key was proved lately at their address.
	node, ofPods, others, askers, streams *group
	known                                 *door // where these say who they are; nil if clients prove no keys

	ready  chan net.Conn
	failed chan error
	closed chan struct{}
	close  func() error
}

func newListener(l net.Listener, pods Pods, access *Access, refused *prometheus.CounterVec) *listener {
	count := func(clients string) prometheus.Counter { return refused.WithLabelValues(clients) }
	n := &listener{
		Listener: l, pods: pods, access: access,
		node:   &group{places: newPlaces(count(thisNode), bounds.Connections, true)},
		ofPods: &group{places: newPlaces(count(ourPods), bounds.ConnectionsPerClient, false)},
		others: &group{places: newPlaces(count(otherClients), bounds.ConnectionsPerClient, false)},
		ready:  make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}),
	}
	n.node.places.requests = nil
	n.close = sync.OnceValue(func() error {
		close(n.closed)
		return l.Close()
	})
	if access == nil {
		return n
	}
	n.config = access.config()
	n.node.door = newDoor(count(thisNode), rate.Inf, bounds.HandshakeClients)
	n.ofPods.door = newDoor(count(ourPods), bounds.HandshakeRate, bounds.HandshakeClients)
	n.others.door = newDoor(count(otherClients), bounds.HandshakeRate, bounds.HandshakeClients)
	if access.Client != nil {
		n.ofPods.places, n.others.places = nil, nil
		n.askers = provenGroup(count(knownClients), bounds.ConnectionsPerClient, false)
		n.streams = provenGroup(count(knownClients), bounds.StreamsPerKey, true)
		// An address with more than one client is not to lose the connection of the one that proved a key.
		n.known = newDoor(count(knownClients), rate.Inf, bounds.HandshakeWaiting)
	}
	return n
}

// provenGroup returns a group of clients that prove keys. Each of their connections has one request, so
// that the door limits requests.
func provenGroup(closed prometheus.Counter, perKey int, replace bool) *group {
	g := &group{door: newDoor(closed, bounds.HandshakeRate, bounds.HandshakeClients), places: newPlaces(closed, perKey, replace), provers: newProvers()}
	g.places.requests = nil
	return g
}

// run accepts connections until the listener is closed. All handshakes have ended when it returns.
func (l *listener) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var doors sync.WaitGroup
	defer doors.Wait()
	defer cancel()
	for _, g := range []*group{l.node, l.ofPods, l.others, l.askers, l.streams} {
		if g != nil && g.door != nil {
			doors.Go(func() { g.door.run(ctx, l.shake(g)) })
		}
	}
	if l.known != nil {
		doors.Go(func() { l.known.run(ctx, l.recognize) })
	}
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil:
			l.enter(&connection{Conn: conn})
		case !l.fail(err):
			return
		}
	}
}

// fail passes on an error of Accept, and reports whether to go on.
func (l *listener) fail(err error) bool {
	select {
	case l.failed <- err:
		return !errors.Is(err, net.ErrClosed)
	case <-l.closed:
		return false
	}
}

// enter gives a new connection its place, or has it wait at a door.
func (l *listener) enter(c *connection) {
	addr := clientOf(c).Unmap()
	if l.known != nil && (l.askers.provers.at(addr) || l.streams.provers.at(addr)) {
		l.known.enter(c, client{address: addr})
		return
	}
	g, identity := l.groupOf(c)
	if g.door != nil {
		g.door.enter(c, identity)
		return
	}
	l.stay(c, c, g.places, identity)
}

// groupOf returns the group of a connection before its handshake.
func (l *listener) groupOf(c *connection) (*group, client) {
	if l.askers == nil && sameMachine(clientOf(c).Unmap(), c.LocalAddr()) {
		return l.node, client{}
	}
	identity, onNode := identify(clientOf(c), l.pods)
	if onNode {
		return l.ofPods, identity
	}
	return l.others, identity
}

// recognize has a connection from where a key was proved lately wait for its handshake: apart from others
// at the address if it names the server as when it proved the key, or as only one should that proves it now.
func (l *listener) recognize(ctx context.Context, a *arrival) {
	ctx, cancel := context.WithTimeout(ctx, bounds.HandshakeTime)
	defer cancel()
	name, again, err := handshake.Hello(ctx, a.connection)
	if err != nil {
		_ = a.Conn.Close()
		return
	}
	c := &connection{Conn: again}
	for _, g := range []*group{l.askers, l.streams} {
		if k, known := g.provers.named(name); known {
			g.door.enter(c, client{key: k})
			return
		}
	}
	if l.access.Named != nil && l.access.Named(ctx, name) {
		l.askers.door.enter(c, client{named: true})
		return
	}
	g := l.streams
	if l.askers.provers.at(a.client.address) {
		g = l.askers
	}
	g.door.enter(c, a.client)
}

// shake returns the handshake of connections at the door of a group.
func (l *listener) shake(g *group) func(context.Context, *arrival) {
	return func(ctx context.Context, a *arrival) {
		ctx, cancel := context.WithTimeout(ctx, bounds.HandshakeTime)
		defer cancel()
		conn, err := handshake.Server(ctx, a.connection, l.config)
		if err != nil {
			return
		}
		if l.access.Client == nil {
			g.door.end(a)
			l.stay(a.connection, conn, g.places, a.client)
			return
		}
		// The client has proved the key only now.
		state := conn.ConnectionState()
		certificate := state.PeerCertificates[0]
		if l.access.Client(ctx, certificate) != nil {
			_ = conn.Close()
			return
		}
		proven, k := l.askers, key(sha256.Sum256(certificate.RawSubjectPublicKeyInfo))
		if l.access.Streams != nil && l.access.Streams(certificate) {
			proven = l.streams
		}
		proven.provers.proved(k, proof{clientOf(conn).Unmap(), sha256.Sum256([]byte(state.ServerName))})
		g.door.end(a)
		l.stay(a.connection, conn, proven.places, client{key: k})
	}
}

// stay has a connection served if it gets a place. conn is c, or TLS on it.
func (l *listener) stay(c *connection, conn net.Conn, s *places, identity client) {
	if !s.admit(c, identity) {
		_ = c.Close()
		return
	}
	select {
	case l.ready <- conn:
	case <-l.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.ready:
		return conn, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error { return l.close() }

// clientOf returns the address of a client, including the interface if it is link-local.
func clientOf(conn net.Conn) netip.Addr {
	tcp, _ := conn.RemoteAddr().(*net.TCPAddr)
	return tcp.AddrPort().Addr() // a nil TCPAddr gives the zero Addr
}

// key is the SHA-256 of a public key.
type key [sha256.Size]byte

// client is an identity that a client cannot choose: the key that it has proved, an address where one
// was proved, its pod, or else the network in which it may own every address.
type client struct {
	key     key
	address netip.Addr
	pod     string
	network netip.Prefix
	link    string // the interface for link-local addresses
	named   bool   // by Access.Named; all of these are one client, because the name can be repeated
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

// connection is a connection of a client.
type connection struct {
	net.Conn
	places   *places // nil before it has a place
	state    *clientState
	busy     bool               // while a request is answered; guarded by places.mu
	cancel   context.CancelFunc // ends work for the connection; nil until the server has it
	requests int                // that it has made
}

// Close implements net.Conn.
func (c *connection) Close() error {
	if c.places != nil {
		c.places.remove(c)
	}
	return c.Conn.Close()
}

// wait waits for the client's turn at p.
func (c *connection) wait(ctx context.Context, p *pace) error {
	select {
	case c.state.turn <- struct{}{}:
		defer func() { <-c.state.turn }()
		return p.wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counted returns the connection that conn wraps, or nil.
func counted(conn net.Conn) *connection {
	for {
		switch c := conn.(type) {
		case *connection:
			return c
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil
		}
	}
}

type connectionKey struct{}

// withConnection returns a context that ends with conn.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	c := counted(conn)
	if c == nil {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	c.places.attach(c, cancel)
	return context.WithValue(ctx, connectionKey{}, c)
}

// connectionOf returns the connection of a context made by withConnection, or nil.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}
