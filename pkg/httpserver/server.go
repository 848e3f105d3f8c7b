// Package httpserver serves metrics and probes at a bounded cost: connections and requests
// are limited, and requests at the same time share one collection of metrics. With an Access
// it serves TLS, and metrics only to whom the Access allows. It does not know what is
// collected, nor who decides about access.
//
// There are no limits for clients on the same machine, such as the kubelet that probes a
// pod in the host's network. They are recognized by their address, which is also the
// server's, or by the server's address being a unix socket.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

const (
	// maxConnections bounds the open connections, and maxPerClient those of one
	// address.
	maxConnections = 128
	maxPerClient   = 8
	// requestRate limits the requests per second over time, and requestBurst those at
	// once. Requests beyond the limit wait: waiting costs no CPU, while clients would
	// repeat a refused request. With all connections waiting a request takes six
	// seconds.
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
		Help: "Connections for metrics and probes that were closed because too many were open, from one address or in total.",
	})}
	reg.MustRegister(s.refused)
	return s
}

// With returns a Server that also serves the requests of a pattern of http.ServeMux by h.
func (s *Server) With(pattern string, h http.Handler) *Server {
	mux := http.NewServeMux()
	mux.Handle("/", s.handler)
	mux.Handle(pattern, h)
	return &Server{handler: mux, refused: s.refused}
}

// Run serves requests on l until ctx ends: with access over TLS to whom it allows, and with
// nil as plain HTTP to all.
func (s *Server) Run(ctx context.Context, l net.Listener, access *Access) error {
	handler := s.handler
	if access != nil {
		handler = access.guard(handler)
	}
	server := &http.Server{
		Handler:           paced(handler, rate.NewLimiter(requestRate, requestBurst)),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	limited := &listener{Listener: l, refused: s.refused, open: make(map[netip.Addr]int)}
	serve := server.Serve
	if access != nil {
		server.TLSConfig = access.config()
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // no HTTP/2
		server.ErrorLog = log.New(io.Discard, "", 0)                                   // any client can cause a line
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(limited); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %v: %w", l.Addr(), err)
	}
	return nil
}

// paced limits the rate of requests except those from this machine.
func paced(h http.Handler, limiter *rate.Limiter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r) && limiter.Wait(r.Context()) != nil {
			return // the client is gone
		}
		h.ServeHTTP(w, r)
	})
}

// local reports whether a request comes from this machine.
func local(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	client, _ := netip.ParseAddrPort(r.RemoteAddr) // zero for a unix socket
	return sameMachine(client.Addr(), at)
}

// sameMachine reports whether a client has the address of the server, or the server is at a
// unix socket.
func sameMachine(client netip.Addr, at net.Addr) bool {
	switch at := at.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return at.AddrPort().Addr().Unmap() == client.Unmap()
	}
	return false
}
