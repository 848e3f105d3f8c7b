// Package handshake makes TLS handshakes in which the peer's length and time are bounded. It knows
// neither who may connect nor how keys are compared.
//
// crypto/tls reads up to 256 KiB of certificates, parses all of them, and calls VerifyConnection before
// the peer has proved the key of its certificate. What is decided, remembered or passed on by the name
// in a certificate therefore has to wait until Server or Client returns.
package handshake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// ErrTooLong is the error for a peer that sends more than a handshake needs.
var ErrTooLong = fmt.Errorf("the TLS handshake is longer than %d bytes", bounds.HandshakeBytes)

// Server makes the handshake of a server. It closes conn if that fails.
func Server(ctx context.Context, conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	return run(ctx, conn, bounds.HandshakeTime, func(c net.Conn) *tls.Conn { return tls.Server(c, config) })
}

// Dial returns a DialTLSContext of http.Transport. dial is that of net.Dialer.
func Dial(dial func(ctx context.Context, network, address string) (net.Conn, error), config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		// The server may have it wait for its turn.
		proved, err := run(ctx, conn, 2*bounds.HandshakeTime, func(c net.Conn) *tls.Conn { return tls.Client(c, config) })
		if err != nil {
			return nil, err // no *tls.Conn that is nil
		}
		return proved, nil
	}
}

func run(ctx context.Context, conn net.Conn, timeout time.Duration, side func(net.Conn) *tls.Conn) (*tls.Conn, error) {
	bounded := &boundedConn{Conn: conn, left: bounds.HandshakeBytes}
	proved := side(bounded)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := proved.HandshakeContext(ctx)
	if err == nil {
		err = one(proved.ConnectionState().PeerCertificates)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	bounded.left = -1
	return proved, nil
}

// one returns an error for a chain of certificates: keys are compared, so only the first is of use.
func one(peer []*x509.Certificate) error {
	if len(peer) > bounds.Certificates {
		return errors.New("the peer has more than one certificate")
	}
	return nil
}

// boundedConn reads a number of bytes.
type boundedConn struct {
	net.Conn
	left int // negative after the handshake
}

// Read implements net.Conn.
func (c *boundedConn) Read(b []byte) (int, error) {
	switch {
	case c.left < 0:
		return c.Conn.Read(b)
	case c.left == 0:
		return 0, ErrTooLong
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// NetConn returns the connection below, as that of tls.Conn does.
func (c *boundedConn) NetConn() net.Conn { return c.Conn }

// Hello reads the first message of a client, without an answer, and returns the server name in it, and a
// connection from which it can be read again. It may close conn if ctx ends.
func Hello(ctx context.Context, conn net.Conn) (name string, again net.Conn, err error) {
	seen := errors.New("no ClientHello")
	quiet := &recorder{Conn: conn}
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name, seen = hello.ServerName, nil
		return nil, errors.New("the handshake is for later")
	}}
	if err := tls.Server(&boundedConn{Conn: quiet, left: bounds.HandshakeBytes}, config).HandshakeContext(ctx); seen != nil {
		return "", nil, fmt.Errorf("%w: %w", seen, err)
	}
	return name, &replayed{Conn: conn, first: quiet.read}, nil
}

// recorder keeps what is read, and sends nothing.
type recorder struct {
	net.Conn
	read []byte
}

// Read implements net.Conn.
func (c *recorder) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read = append(c.read, b[:n]...)
	return n, err
}

// Write implements net.Conn.
func (c *recorder) Write(b []byte) (int, error) { return len(b), nil }

// replayed reads first before the rest of a connection.
type replayed struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (c *replayed) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}
