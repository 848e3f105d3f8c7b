package httpserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// inPlainServer runs f in a bubble with a server without TLS, which serves h.
func inPlainServer(t *testing.T, h http.HandlerFunc, f func(*testing.T, *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- New(h, clusterPods, prometheus.NewRegistry()).Run(ctx, p, nil) }()
		f(t, p)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, conn := range p.clients {
			conn.Close()
		}
		synctest.Wait()
	})
}

func fine(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fine") }

// write writes a request while the answer is read, as the server may not read all of it.
func write(conn net.Conn, request string) *bufio.Reader {
	go func() { _, _ = io.WriteString(conn, request) }()
	return bufio.NewReader(conn)
}

// TestRequestsAreBounded: a request that is longer than any client's gets no answer of the handler, and
// its connection ends.
func TestRequestsAreBounded(t *testing.T) {
	const get = "GET /metrics HTTP/1.1\r\nHost: x\r\n"
	for _, tc := range []struct {
		name, request string
		want          int
	}{
		{"nothing more", get + "\r\n", http.StatusOK},
		{"a long URL", "GET /" + strings.Repeat("a", bounds.URLBytes) + " HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusRequestURITooLong},
		{"many parameters", "GET /?" + strings.Repeat("a&", bounds.URLBytes/2) + " HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusRequestURITooLong},
		{"a long header", get + "A: " + strings.Repeat("a", bounds.HeaderBytes) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		{"many headers", get + strings.Repeat("A: a\r\n", bounds.HeaderBytes/6) + "\r\n", http.StatusRequestHeaderFieldsTooLarge},
		{"a body", get + "Content-Length: 1\r\n\r\na", http.StatusRequestEntityTooLarge},
		{"a body of unknown length", get + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", http.StatusRequestEntityTooLarge},
		{"a body without end", get + "Content-Length: 1000000000000\r\n\r\na", http.StatusRequestEntityTooLarge},
		{"HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", http.StatusRequestEntityTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inPlainServer(t, fine, func(t *testing.T, p *pipes) {
				conn := p.dial("192.0.2.7")
				reader := write(conn, tc.request)
				answer, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				if answer.StatusCode != tc.want {
					t.Errorf("status %d, want %d", answer.StatusCode, tc.want)
				}
				if tc.want != http.StatusOK {
					if _, err := reader.ReadByte(); err == nil {
						t.Error("the connection goes on")
					}
				}
			})
		})
	}
}

// TestLifetimesOfConnections: a client that sends nothing, or half of a request, or nothing more, or reads
// nothing, loses its connection in time.
func TestLifetimesOfConnections(t *testing.T) {
	large := func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	}
	const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		send    string
		reads   bool // it reads all answers
		after   time.Duration
	}{
		{"nothing is sent", fine, "", true, bounds.HeaderTime},
		{"half a header", fine, "GET / HT", true, bounds.HeaderTime},
		{"nothing more", fine, get, true, bounds.IdleTime},
		{"half of the next request", fine, get + "GET / H", true, bounds.IdleTime},
		{"nothing is read", large, get, false, bounds.WriteTime},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inPlainServer(t, tc.handler, func(t *testing.T, p *pipes) {
				conn := p.dial("192.0.2.7")
				began := time.Now()
				_, _ = io.WriteString(conn, tc.send)
				if tc.reads {
					_, _ = io.Copy(io.Discard, conn)
				} else {
					time.Sleep(tc.after + time.Second)
					_, _ = io.Copy(io.Discard, conn)
				}
				if lasted := time.Since(began); lasted > tc.after+time.Second {
					t.Errorf("it lasts %v, want %v", lasted, tc.after)
				}
			})
		})
	}
}

// TestRequestsPerConnection: a connection ends after a number of requests, here those of this machine,
// which have no pace.
func TestRequestsPerConnection(t *testing.T) {
	inPlainServer(t, fine, func(t *testing.T, p *pipes) {
		conn := p.dial("192.0.2.1")
		reader := bufio.NewReader(conn)
		for i := range bounds.RequestsPerConnection {
			go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
			answer, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			if last := i == bounds.RequestsPerConnection-1; answer.Close != last {
				t.Fatalf("request %d ends the connection: %v", i, answer.Close)
			}
		}
	})
}

// TestTokensAreBounded: the API server is not asked about a token that is longer than any.
func TestTokensAreBounded(t *testing.T) {
	asked := 0
	access := &Access{Authorize: func(context.Context, string, string) error { asked++; return nil }}
	for length, want := range map[int]bool{bounds.TokenBytes: true, bounds.TokenBytes + 1: false} {
		r := request("192.0.2.7")
		r.Header.Set("Authorization", "Bearer "+strings.Repeat("a", length))
		if err := access.authorize(r); (err == nil) != want {
			t.Errorf("a token of %d bytes: %v", length, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked about %d tokens", asked)
	}
}

// TestSocketIsBounded: a client of a unix socket takes the place of the oldest if there are too many.
func TestSocketIsBounded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "probe")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(http.HandlerFunc(fine), nil, prometheus.NewRegistry()).Run(ctx, l, nil) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	var conns []net.Conn
	for i := range bounds.Connections + 1 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		if answer, err := http.ReadResponse(write(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), nil); err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	if _, err := io.Copy(io.Discard, conns[0]); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}

// TestDoorIsBounded: a door remembers when a bounded number of clients began, and has a bounded number of
// connections wait and shake hands at a time.
func TestDoorIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(prometheus.NewCounter(prometheus.CounterOpts{}), bounds.HandshakeRate, bounds.HandshakeClients)
		ctx, cancel := context.WithCancel(t.Context())
		running, most := 0, 0
		var ended []net.Conn
		go d.run(ctx, func(_ context.Context, a *arrival) {
			d.mu.Lock()
			running++
			d.mu.Unlock()
			_, _ = a.Conn.Read(make([]byte, 1)) // until the door closes it
			d.mu.Lock()
			running--
			d.mu.Unlock()
		})
		for i := range 3 * bounds.RecentClients {
			near, far := net.Pipe()
			ended = append(ended, near)
			d.enter(&connection{Conn: far}, client{pod: fmt.Sprint(i)})
			time.Sleep(time.Second / (2 * bounds.HandshakeRate))
			synctest.Wait()
			d.mu.Lock()
			most = max(most, running)
			if len(d.waiting) > bounds.HandshakeWaiting || len(d.begun.items) > bounds.RecentClients {
				t.Errorf("%d wait, %d are remembered", len(d.waiting), len(d.begun.items))
			}
			d.mu.Unlock()
		}
		if most != bounds.HandshakeRunning {
			t.Errorf("at most %d handshakes at a time, want %d", most, bounds.HandshakeRunning)
		}
		cancel()
		synctest.Wait()
		for _, conn := range ended {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Fatalf("a connection goes on after the end: %v", err)
			}
		}
	})
}

// TestConnectionsOfOneClientWait: at most a number of them, the latest.
func TestConnectionsOfOneClientWait(t *testing.T) {
	d := newDoor(prometheus.NewCounter(prometheus.CounterOpts{}), bounds.HandshakeRate, bounds.HandshakeClients)
	var far [2 * bounds.HandshakeClients]net.Conn
	for i := range far {
		var near net.Conn
		near, far[i] = net.Pipe()
		d.enter(&connection{Conn: near}, client{pod: "one"})
	}
	if n := len(d.waiting); n != bounds.HandshakeClients {
		t.Errorf("%d connections wait", n)
	}
	for i, conn := range far {
		if open(conn) != (i >= bounds.HandshakeClients) {
			t.Errorf("connection %d is open: %v", i, open(conn))
		}
	}
}

// TestHandshakesEndInTime: a client that begins no handshake, or half of one, loses its connection.
func TestHandshakesEndInTime(t *testing.T) {
	for name, sent := range map[string]string{"nothing": "", "half": "\x16\x03\x01\x02\x00\x01"} {
		t.Run(name, func(t *testing.T) {
			inKeyServer(t, func(s *keyServer) {
				conn := s.dial("192.0.2.7")
				began := time.Now()
				_, _ = io.WriteString(conn, sent)
				_, _ = io.Copy(io.Discard, conn)
				if lasted := time.Since(began); lasted != bounds.HandshakeTime {
					s.t.Errorf("it lasts %v, want %v", lasted, bounds.HandshakeTime)
				}
			})
		})
	}
}
