// Package link is a TCP connection that can be broken: it forwards to a server
// until a test says otherwise.
package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Link forwards TCP connections. Its methods may be called from any goroutine.
type Link struct {
	listener net.Listener
	target   string
	done     sync.WaitGroup

	mu    sync.Mutex
	down  bool
	pairs map[*pair]struct{}
	next  chan struct{} // closed with the next connection
}

// New returns a Link to target, a "host:port". Close ends it.
func New(target string) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", target, err)
	}
	l := &Link{listener: listener, target: target, pairs: map[*pair]struct{}{}, next: make(chan struct{})}
	l.done.Go(l.accept)
	return l, nil
}

// Address returns the "host:port" that forwards to the target.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Break ends all connections. New ones get through.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breakAll()
}

// Down ends all connections and new ones at once, until Up.
func (l *Link) Down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	l.breakAll()
}

// Up lets new connections get through.
func (l *Link) Up() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// Silence keeps all connections open but forwards nothing in them, like a router that has
// lost its state. New connections get through.
func (l *Link) Silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		p.silent.Store(true)
	}
}

// Next returns a channel that is closed when the client connects again.
func (l *Link) Next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// Close ends the Link and waits for its goroutines.
func (l *Link) Close() error {
	err := l.listener.Close()
	l.Down()
	l.done.Wait()
	return err
}

// breakAll needs the lock.
func (l *Link) breakAll() {
	for p := range l.pairs {
		p.close()
	}
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.done.Go(func() { l.serve(client) })
	}
}

// serve joins client with the target until one of them ends.
func (l *Link) serve(client net.Conn) {
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		client.Close() // as if the client had asked the target itself
		return
	}
	p := &pair{client: client, server: server}
	defer p.close()
	if !l.add(p) {
		return
	}
	defer l.remove(p)
	var both sync.WaitGroup
	both.Go(func() { p.forward(server, client) })
	both.Go(func() { p.forward(client, server) })
	both.Wait()
}

func (l *Link) add(p *pair) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down {
		l.pairs[p] = struct{}{}
	}
	close(l.next)
	l.next = make(chan struct{})
	return !l.down
}

func (l *Link) remove(p *pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pairs, p)
}

// pair holds the two halves of a forwarded connection.
type pair struct {
	client, server net.Conn
	silent         atomic.Bool
}

// close ends both halves. They may have ended already.
func (p *pair) close() { _ = errors.Join(p.client.Close(), p.server.Close()) }

// forward copies from src to dst until one ends, and then ends both.
func (p *pair) forward(dst io.Writer, src io.Reader) {
	defer p.close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := src.Read(buffer)
		if err != nil {
			return
		}
		if p.silent.Load() {
			continue
		}
		if _, err := dst.Write(buffer[:n]); err != nil {
			return
		}
	}
}
