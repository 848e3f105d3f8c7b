package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// start serves "ok" on 127.0.0.1. Each other address of the loopback network is another
// client.
func start(t *testing.T) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }), nil, prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// ask opens a connection of a client, sends a request and leaves the connection open. It
// reports whether there was a response.
func ask(t *testing.T, client, server string) (net.Conn, bool) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	n, _ := io.ReadFull(conn, make([]byte, len("HTTP/1.1 200")))
	return conn, n > 0
}

func TestOneClientDoesNotTakeAllConnections(t *testing.T) {
	s, server := start(t)
	var open []net.Conn
	for range bounds.ConnectionsPerClient + 1 {
		conn, ok := ask(t, "127.0.0.2", server)
		if !ok {
			t.Fatal("refused although all other connections are idle")
		}
		open = append(open, conn)
	}
	if n := testutil.ToFloat64(s.refused.WithLabelValues(otherClients)); n != 1 {
		t.Errorf("%v connections closed, want 1", n)
	}
	if _, err := io.Copy(io.Discard, open[0]); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest connection is not closed: %v", err)
	}
	for _, client := range []string{"127.0.0.3", "127.0.0.1"} {
		if _, ok := ask(t, client, server); !ok {
			t.Errorf("the connection of %s is refused", client)
		}
	}
}

func TestMetricsAreCollectedOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		collected := 0
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "x", Help: "x"}, func() float64 {
			collected++
			return 1
		}))
		h := metricsHandler(reg)
		scrape := func(client string) {
			w := httptest.NewRecorder()
			r := request(client)
			r.Header.Set("Accept-Encoding", "gzip")
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK || w.Header().Get("Content-Encoding") != "" {
				t.Errorf("%d, %v", w.Code, w.Header())
			}
		}
		for _, want := range []int{1, 2} {
			for range 50 {
				scrape("192.0.2.2")
			}
			if collected != want {
				t.Errorf("%d collections, want %d", collected, want)
			}
			time.Sleep(time.Second)
		}
		scrape("192.0.2.1")
		scrape("192.0.2.1")

		if collected != 4 {
			t.Errorf("%d collections, want a fresh one for each request from the machine", collected)
		}
		if problems, err := testutil.GatherAndLint(reg, "netpol_metrics_collections_total"); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}

func TestProbes(t *testing.T) {
	h := Handler(NewRegistry(), func() error { return nil }, func() error { return errors.New("not synced") })
	for _, tt := range []struct {
		path, want string
		code       int
	}{
		{"/livez", "ok\n", http.StatusOK},
		{"/readyz", "not synced\n", http.StatusServiceUnavailable},
		{"/other", "404 page not found\n", http.StatusNotFound},
	} {
		t.Run(tt.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
			if w.Code != tt.code || w.Body.String() != tt.want {
				t.Errorf("got %d %q, want %d %q", w.Code, w.Body, tt.code, tt.want)
			}
		})
	}
}

// With serves a path on the new Server only, not on the one that it was called on.
func TestAPathIsAddedToOneServer(t *testing.T) {
	s := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }), nil, prometheus.NewRegistry())
	more := s.With("GET /more", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "more") }))
	for _, tc := range []struct {
		server     *Server
		path, want string
	}{{s, "/", "ok"}, {s, "/more", "ok"}, {more, "/", "ok"}, {more, "/more", "more"}} {
		t.Run(fmt.Sprintf("%s, more %v", tc.path, tc.server == more), func(t *testing.T) {
			w := httptest.NewRecorder()
			tc.server.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
			if got := w.Body.String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
