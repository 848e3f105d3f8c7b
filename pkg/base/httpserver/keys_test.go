package httpserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/handshake"
)

// pipes is a listener in memory, for servers in a bubble.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	end    sync.Once

	mu      sync.Mutex
	clients []net.Conn
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.end.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return tcpAddr("192.0.2.1:9082") }

// pipe is one end of a connection in memory.
type pipe struct {
	net.Conn
	local, remote string
}

func (c *pipe) LocalAddr() net.Addr  { return tcpAddr(c.local) }
func (c *pipe) RemoteAddr() net.Addr { return tcpAddr(c.remote) }

// dial connects from an address.
func (p *pipes) dial(from string) net.Conn {
	from = net.JoinHostPort(from, "4000")
	near, far := net.Pipe()
	p.mu.Lock()
	p.clients = append(p.clients, near)
	p.mu.Unlock()
	select {
	case p.accept <- &pipe{far, "192.0.2.1:9082", from}:
	case <-p.closed:
		near.Close()
	}
	return &pipe{near, from, "192.0.2.1:9082"}
}

// keyServer is a server whose clients prove keys, in a bubble. Those of agents listen to a stream, which
// begins with a line, and the writer's asks a question.
type keyServer struct {
	t *testing.T
	*pipes
	server *Server
	writer *tls.Certificate
	name   string // of the server, to its clients

	names   sync.Mutex
	checked []string // names in certificates
	served  int
}

const (
	agentsName  = "agent of "
	namedWriter = ".key-of-the-writer" // the end of server names by which the writer may be known
)

// inKeyServer runs f with a keyServer in a bubble.
func inKeyServer(t *testing.T, f func(*keyServer)) {
	certificate, writer := selfSigned(t, "node-1"), certificateOf(t, "writer")
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{t: t, pipes: &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}, writer: writer}
		s.server = New(s, clusterPods, prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- s.server.Run(ctx, s.pipes, &Access{Certificate: certificate, Client: s.check, Named: func(_ context.Context, name string) bool { return strings.HasSuffix(name, namedWriter) }, Streams: isAgents})
		}()
		f(s)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, conn := range s.clients {
			conn.Close()
		}
		time.Sleep(time.Minute) // as some wait for answers
	})
}

func isAgents(c *x509.Certificate) bool { return strings.HasPrefix(c.Subject.CommonName, agentsName) }

// check admits the writer's key and all keys of agents.
func (s *keyServer) check(_ context.Context, c *x509.Certificate) error {
	s.names.Lock()
	defer s.names.Unlock()
	s.checked = append(s.checked, c.Subject.CommonName)
	if isAgents(c) || bytes.Equal(c.Raw, s.writer.Certificate[0]) {
		return nil
	}
	return errors.New("unknown")
}

func (s *keyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.names.Lock()
	s.served++
	s.names.Unlock()
	fmt.Fprintln(w, "answer")
	if isAgents(r.TLS.PeerCertificates[0]) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// certificateOf returns a certificate with a new key for a name.
func certificateOf(t *testing.T, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// ask makes a request on a connection, and returns the first line of the answer.
func (s *keyServer) ask(conn net.Conn, certificate *tls.Certificate) (string, error) {
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*certificate}, ServerName: s.name})
	if err := client.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(client, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := client.Read(answer)
	return string(answer[:n]), err
}

// wantAnswers has the writer ask from an address, and expects an answer to each question.
func (s *keyServer) wantAnswers(from string, questions int) {
	s.t.Helper()
	for i := range questions {
		conn := s.dial(from)
		if answer, err := s.ask(conn, s.writer); err != nil || !strings.HasPrefix(answer, "HTTP/1.0 200") {
			s.t.Errorf("question %d of the writer: %.40q, %v", i+1, answer, err)
		}
		conn.Close()
		time.Sleep(200 * time.Millisecond)
	}
}

// listen opens the stream of an agent, and returns its connection.
func (s *keyServer) listen(from string, certificate *tls.Certificate) net.Conn {
	s.t.Helper()
	conn := s.dial(from)
	if answer, err := s.ask(conn, certificate); err != nil {
		s.t.Errorf("the agent at %s: %.40q, %v", from, answer, err)
	}
	return conn
}

// open reports whether a connection has not been closed by the server.
func open(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	for {
		_, err := conn.Read(make([]byte, 4096))
		if err != nil {
			return errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout")
		}
	}
}

// TestStreamsLeaveThePlacesOfTheWriter: with as many streams as there are places, of nodes or of one
// node's agents, all questions of the writer are answered, and another agent gets a stream, too.
func TestStreamsLeaveThePlacesOfTheWriter(t *testing.T) {
	agents := make([]*tls.Certificate, bounds.Connections+1)
	for i := range agents {
		agents[i] = certificateOf(t, fmt.Sprint(agentsName, i))
	}
	inKeyServer(t, func(s *keyServer) {
		var streams []net.Conn
		for i, c := range agents[:bounds.Connections] {
			streams = append(streams, s.listen(fmt.Sprintf("192.0.2.%d", 10+i), c))
		}
		s.wantAnswers("198.51.100.1", 5)
		for i, stream := range streams {
			if !open(stream) {
				t.Errorf("stream %d is closed", i)
			}
		}
		s.listen("192.0.2.200", agents[bounds.Connections])
		for i, stream := range streams {
			if open(stream) != (i > 0) {
				t.Errorf("stream %d is open: %v", i, open(stream))
			}
		}
	})
}

// TestOneStreamForEachKey: an agent that listens again, from wherever, has one stream, and displaces no
// other agent's.
func TestOneStreamForEachKey(t *testing.T) {
	one, other := certificateOf(t, agentsName+"one"), certificateOf(t, agentsName+"other")
	inKeyServer(t, func(s *keyServer) {
		others := s.listen("192.0.2.250", other)
		var last net.Conn
		for i := range 2 * bounds.Connections {
			stream := s.listen(fmt.Sprintf("192.0.2.%d", 10+i), one)
			if last != nil && open(last) {
				t.Errorf("stream %d is open beside the next one", i-1)
			}
			last = stream
			time.Sleep(time.Second / bounds.HandshakeRate)
		}
		if !open(last) || !open(others) {
			t.Error("the last stream, or that of another agent, is closed")
		}
	})
}

// crowd is unknown clients that connect at a rate from addresses, in turn, until the test ends.
func (s *keyServer) crowd(ctx context.Context, rate, addresses int, attack func(conn net.Conn), address func(i int) string) {
	for i := 0; ctx.Err() == nil; i++ {
		go func() {
			conn := s.dial(address(i % addresses))
			defer conn.Close()
			attack(conn)
		}()
		time.Sleep(time.Second / time.Duration(rate))
	}
}

// shake makes whole handshakes, with another server name than the writer's.
func shake(certificate *tls.Certificate) func(net.Conn) { return shakeWith(certificate, "guessed") }

func shakeWith(certificate *tls.Certificate, name string) func(net.Conn) {
	return func(conn net.Conn) {
		config := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*certificate}, ServerName: name}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_ = tls.Client(conn, config).Handshake()
		_, _ = io.Copy(io.Discard, conn)
	}
}

// TestCrowdOfUnknownClients: whatever unknown clients do at the port, at any rate and from 80 addresses, all
// questions of the writer are answered: of one that is new, and of one that the server knows.
func TestCrowdOfUnknownClients(t *testing.T) {
	unknown, agents := certificateOf(t, "unknown"), certificateOf(t, agentsName+"none")
	stolen := &tls.Certificate{Certificate: agents.Certificate, PrivateKey: unknown.PrivateKey}
	nothing := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	half := func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1})
		_, _ = io.Copy(io.Discard, conn)
	}
	others := func(i int) string { return fmt.Sprintf("192.0.2.%d", 10+i) }
	pods := func(i int) string { return fmt.Sprintf("10.1.0.%d", 10+i) }
	networks := func(i int) string { return fmt.Sprintf("2001:db8:%x::1", 10+i) }
	for _, tc := range []struct {
		name    string
		attack  func(net.Conn)
		rate    int
		address func(int) string
		lasts   time.Duration
	}{
		{"whole handshakes", shake(unknown), 45, others, 5 * time.Second},
		{"whole handshakes", shake(unknown), 126, others, 5 * time.Second},
		{"whole handshakes of pods", shake(unknown), 126, pods, 5 * time.Second},
		{"whole handshakes from networks", shake(unknown), 126, networks, 5 * time.Second},
		{"the certificate of an agent", shake(stolen), 126, others, 5 * time.Second},
		{"nothing is sent", nothing, 126, others, 2 * bounds.RecentFor},
		{"nothing is sent by pods", nothing, 126, pods, 5 * time.Second},
		{"nothing is sent, fast", nothing, 2000, others, 5 * time.Second},
		{"half a handshake", half, 126, others, 5 * time.Second},
		{"closed at once", func(net.Conn) {}, 2000, networks, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%s, %d a second", tc.name, tc.rate), func(t *testing.T) {
			inKeyServer(t, func(s *keyServer) {
				ctx, cancel := context.WithCancel(s.t.Context())
				go s.crowd(ctx, tc.rate, 80, tc.attack, tc.address)
				time.Sleep(tc.lasts)
				s.wantAnswers("198.51.100.1", 8)
				s.wantAnswers("10.1.0.3", 2)       // as a pod of this node
				s.wantAnswers("2001:db8:ff::1", 2) // by the other family
				cancel()
			})
		})
	}
}

// TestWhoSharesAnAddress: unknown clients behind an address where an agent has proved its key take no turns of
// the writer or of agents elsewhere.
func TestWhoSharesAnAddress(t *testing.T) {
	one, other, unknown := certificateOf(t, agentsName+"one"), certificateOf(t, agentsName+"other"), certificateOf(t, "unknown")
	inKeyServer(t, func(s *keyServer) {
		const shared = "192.0.2.10"
		s.listen(shared, one)
		s.listen("192.0.2.11", other)
		s.wantAnswers("198.51.100.1", 1)
		ctx, cancel := context.WithCancel(s.t.Context())
		go s.crowd(ctx, 500, 1, shake(unknown), func(int) string { return shared })
		time.Sleep(10 * time.Second)
		s.wantAnswers("198.51.100.1", 8)
		for range 8 {
			s.listen("192.0.2.11", other)
		}
		s.wantAnswers("203.0.113.1", 1) // a writer that is new
		cancel()
	})
}

// TestWhoSharesTheAddressOfTheWriter: unknown clients behind the address of the writer do not keep it out, at any
// rate, whether they send nothing, all that they can, or another server name.
func TestWhoSharesTheAddressOfTheWriter(t *testing.T) {
	unknown := certificateOf(t, "unknown")
	for name, attack := range map[string]func(net.Conn){
		"closed at once":   func(net.Conn) {},
		"nothing is sent":  func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
		"whole handshakes": shake(unknown),
	} {
		for _, rate := range []int{45, 500} {
			t.Run(fmt.Sprintf("%s, %d a second", name, rate), func(t *testing.T) {
				inKeyServer(t, func(s *keyServer) {
					const shared = "192.0.2.10"
					s.name = "secret"
					s.wantAnswers(shared, 1)
					ctx, cancel := context.WithCancel(s.t.Context())
					go s.crowd(ctx, rate, 1, attack, func(int) string { return shared })
					time.Sleep(5 * time.Second)
					s.wantAnswers(shared, 8)
					cancel()
				})
			})
		}
	}
}

// TestTheNextWriterSharesAnAddress: unknown clients behind the address of the former writer keep a new one from no
// question. Who repeats its name takes no turns of one that has proved its key.
func TestTheNextWriterSharesAnAddress(t *testing.T) {
	unknown, former, next := certificateOf(t, "unknown"), certificateOf(t, "former"), certificateOf(t, "next")
	for name, tc := range map[string]struct {
		attack func(net.Conn)
		proved int // questions before the attack
	}{
		"closed at once":   {func(net.Conn) {}, 0},
		"whole handshakes": {shake(unknown), 0},
		"its name":         {shakeWith(unknown, "replayed"+namedWriter), 1},
	} {
		t.Run(name, func(t *testing.T) {
			inKeyServer(t, func(s *keyServer) {
				const shared = "192.0.2.10"
				s.name, s.writer = "a"+namedWriter, former
				s.wantAnswers(shared, 1)
				s.name, s.writer = "b"+namedWriter, next
				s.wantAnswers(shared, tc.proved)
				ctx, cancel := context.WithCancel(s.t.Context())
				go s.crowd(ctx, 500, 1, tc.attack, func(int) string { return shared })
				time.Sleep(5 * time.Second)
				s.wantAnswers(shared, 8)
				cancel()
			})
		})
	}
}

// TestOthersArriveWithTheWriter: connections of others from the writer's address that arrive at once do not displace
// its own before its server name is read.
func TestOthersArriveWithTheWriter(t *testing.T) {
	l := newListener(nil, clusterPods, &Access{Client: func(context.Context, *x509.Certificate) error { return nil }}, New(nil, nil, prometheus.NewRegistry()).refused)
	const shared = "192.0.2.10"
	l.askers.provers.proved(key{1}, proof{at: netip.MustParseAddr(shared)})
	arrive := func() net.Conn {
		near, far := net.Pipe()
		l.enter(&connection{Conn: &pipe{far, "192.0.2.1:9082", shared + ":4000"}})
		return near
	}
	writer := arrive()
	for range bounds.HandshakeWaiting - 1 {
		arrive()
	}
	if !open(writer) {
		t.Error("the connection of the writer is closed")
	}
}

// TestNamesOfUnknownClients: what an unknown client says of itself is checked only after it has proved its key, and
// not at all if the handshake is longer than any client's.
func TestNamesOfUnknownClients(t *testing.T) {
	long := certificateOf(t, agentsName+strings.Repeat("a", 240<<10))
	chain := certificateOf(t, agentsName+"chain")
	chain.Certificate = append(chain.Certificate, chain.Certificate[0])
	unproved := certificateOf(t, agentsName+"unproved")
	unproved.PrivateKey = chain.PrivateKey
	proved := certificateOf(t, agentsName+"proved")
	inKeyServer(t, func(s *keyServer) {
		for _, c := range []*tls.Certificate{long, chain, unproved} {
			if answer, err := s.ask(s.dial("192.0.2.10"), c); err == nil {
				t.Errorf("an unknown client gets %q", answer)
			}
		}
		s.listen("192.0.2.10", proved)
		if !slices.Equal(s.checked, []string{agentsName + "proved"}) || s.served != 1 {
			t.Errorf("%d names are checked, %d requests are served, want the last", len(s.checked), s.served)
		}
	})
}

// TestHandshakesAreBounded: a handshake has as many bytes as a client's needs, whatever they are.
func TestHandshakesAreBounded(t *testing.T) {
	for name, c := range map[string]*tls.Config{
		"the name of the server": {ServerName: strings.Repeat("a.", bounds.HandshakeBytes/2) + "a"},
		"protocols":              {NextProtos: slices.Repeat([]string{strings.Repeat("p", 255)}, bounds.HandshakeBytes/256)},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				c.InsecureSkipVerify = true
				_ = tls.Client(near, c).Handshake()
				near.Close()
			}()
			certificate, err := selfSigned(t, "node-1")(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := handshake.Server(t.Context(), far, &tls.Config{Certificates: []tls.Certificate{*certificate}}); !errors.Is(err, handshake.ErrTooLong) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestProversAreBounded: the addresses of a bounded number of keys are known, for some time, and one of
// each key: whoever has one key and many addresses makes none be forgotten.
func TestProversAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvers()
		addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
		keyAt := func(i int) key { return key{byte(i), byte(i >> 8)} }
		p.proved(keyAt(0), proof{at: addr(0)})
		for i := range 2 * bounds.KnownKeys {
			p.proved(keyAt(1), proof{at: addr(1 + i)})
		}
		if !p.at(addr(0)) || p.at(addr(1)) || !p.at(addr(2*bounds.KnownKeys)) || len(p.address) != 2 {
			t.Errorf("%d addresses are known of 2 keys", len(p.address))
		}
		for i := range 2 * bounds.KnownKeys {
			time.Sleep(time.Millisecond)
			p.proved(keyAt(i), proof{at: addr(i)})
		}
		if len(p.byKey.items) != bounds.KnownKeys || len(p.address) > bounds.KnownKeys || p.at(addr(0)) || !p.at(addr(bounds.KnownKeys)) {
			t.Errorf("%d keys and %d addresses are known", len(p.byKey.items), len(p.address))
		}
		time.Sleep(bounds.KnownFor)
		if p.at(addr(bounds.KnownKeys)) {
			t.Error("an address is known for longer than it should be")
		}
	})
}
