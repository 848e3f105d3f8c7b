package httpserver

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// TestOneClientDoesNotTakeAllConnections: a client with all its connections gets a further one in place of
// its oldest, and others are served.
func TestOneClientDoesNotTakeAllConnections(t *testing.T) {
	inPlainServer(t, fine, func(t *testing.T, p *pipes) {
		// ask sends a request on a new connection, which stays open.
		ask := func(client string) net.Conn {
			conn := p.dial(client)
			if _, err := http.ReadResponse(write(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), nil); err != nil {
				t.Errorf("a connection of %s is refused: %v", client, err)
			}
			synctest.Wait()
			return conn
		}
		var all []net.Conn
		for range bounds.ConnectionsPerClient + 1 {
			all = append(all, ask("192.0.2.7"))
			time.Sleep(time.Second / bounds.RequestRate)
		}
		for i, conn := range all {
			if open(conn) != (i > 0) {
				t.Errorf("connection %d is open: %v", i, open(conn))
			}
		}
		ask("192.0.2.8")
		ask("192.0.2.1")
	})
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
