// Package httpserver serves metrics and probes so that clients, however many and
// however eager, cost little: connections and requests have limits, and what is
// collected is collected once for all that ask at the same time. It knows nothing of
// what is collected.
//
// Clients of the machine itself, such as the kubelet that probes a pod on the host's
// network, are told by their address, which is the server's, and have no limits.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

const (
	// maxConnections is how many may be open at a time, and maxPerClient how many
	// of one address.
	maxConnections = 128
	maxPerClient   = 8
	// requestRate is how many requests are answered in a second over time, and
	// requestBurst at once. Others wait: what waits costs no CPU, while a refusal
	// would only be followed by the next request. With all connections waiting a
	// request takes six seconds.
	requestRate  = 20
	requestBurst = 20
	// maxHeader bounds the memory of a connection.
	maxHeader = 16 << 10
)

// Server serves one handler.
type Server struct {
	handler http.Handler
	refused prometheus.Counter
}

// New returns a Server of h.
func New(h http.Handler, reg prometheus.Registerer) *Server {
	s := &Server{handler: h, refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_http_connections_refused_total",
		Help: "Connections for metrics and probes that were closed because too many were open, of one address or in all.",
	})}
	reg.MustRegister(s.refused)
	return s
}

// Run answers on l until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           paced(s.handler, rate.NewLimiter(requestRate, requestBurst)),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	limited := &listener{Listener: l, refused: s.refused, open: make(map[netip.Addr]int)}
	if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %v: %w", l.Addr(), err)
	}
	return nil
}

// paced has requests wait for their turn, but for those of this machine.
func paced(h http.Handler, limiter *rate.Limiter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r) && limiter.Wait(r.Context()) != nil {
			return // the client has gone
		}
		h.ServeHTTP(w, r)
	})
}

// local reports whether a request comes from this machine.
func local(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && sameAddress(client.Addr(), at)
}

// sameAddress reports whether a client has the address that it talks to.
func sameAddress(client netip.Addr, at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && tcp.AddrPort().Addr().Unmap() == client.Unmap()
}
