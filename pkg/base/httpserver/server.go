// Package httpserver serves metrics and probes at a bounded cost. It limits connections and
// requests, and concurrent requests share one collection of metrics. With an Access it uses
// TLS and serves metrics only to clients that the Access allows. It does not know what is
// collected or who decides about access.
//
// Pods of this node have one share of the connections, all other clients another. Within a
// share, a client can displace only clients with more connections than it has. A client is
// a pod, or a network in which one host may own every address.
//
// Clients on the same machine, such as the kubelet that probes a host-network pod, have no
// limits. They are recognised because their address is also the server's, or because the
// server listens on a unix socket.
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
)

// DefaultAddress is where agents and status writer serve unless configured otherwise.
const DefaultAddress = ":9080"

const (
	// maxConnections bounds the open connections of a share, maxPerClient those of one client.
	maxConnections = 64
	maxPerClient   = 8
	// requestRate limits the requests of a share, as a rate per second and a burst. Requests
	// beyond it wait, one per client: waiting costs no CPU, while clients would repeat a
	// refused request. With 64 clients a request takes six seconds.
	requestRate = 10
	// maxHeader bounds the memory of a connection.
	maxHeader = 16 << 10
)

// Pods returns the pod at an address, "" if none is known, and whether the address belongs
// to a pod of this node.
type Pods func(netip.Addr) (pod string, onNode bool)

// Server serves one handler.
type Server struct {
	handler http.Handler
	pods    Pods
	refused *prometheus.CounterVec
}

// New returns a Server for h. With nil pods, no client is a pod of this node.
func New(h http.Handler, pods Pods, reg prometheus.Registerer) *Server {
	s := &Server{handler: h, pods: pods, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_http_connections_refused_total",
		Help: "Connections for metrics and probes that were closed because too many were open.",
	}, []string{"clients"})}
	reg.MustRegister(s.refused)
	for _, clients := range []string{ourPods, otherClients} {
		s.refused.WithLabelValues(clients)
	}
	return s
}

// The label values of refused connections.
const (
	ourPods      = "pods"
	otherClients = "others"
)

// With returns a Server that also serves a pattern of http.ServeMux with h.
func (s *Server) With(pattern string, h http.Handler) *Server {
	mux := http.NewServeMux()
	mux.Handle("/", s.handler)
	mux.Handle(pattern, h)
	return &Server{handler: mux, pods: s.pods, refused: s.refused}
}

// Serving returns a Server of another address, which serves h alone. Only its metrics are those of s.
func (s *Server) Serving(h http.Handler) *Server {
	return &Server{handler: h, pods: s.pods, refused: s.refused}
}

// Run serves requests on l until ctx ends: over TLS to clients that access allows, or as
// plain HTTP to all if access is nil.
func (s *Server) Run(ctx context.Context, l net.Listener, access *Access) error {
	handler := s.handler
	if access != nil {
		handler = access.guard(handler)
	}
	server := &http.Server{
		Handler:           paced(handler),
		ReadHeaderTimeout: 5 * time.Second, // includes the TLS handshake
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      15 * time.Second, // includes the time for which a request waits
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConnection,
		ConnState:         markIdle,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	limited := &listener{
		Listener: l, pods: s.pods,
		podShare: newShare(s.refused.WithLabelValues(ourPods)), otherShare: newShare(s.refused.WithLabelValues(otherClients)),
	}
	serve := server.Serve
	if access != nil {
		server.TLSConfig = access.config()
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // no HTTP/2
		server.ErrorLog = log.New(io.Discard, "", 0)                                   // any client could fill the log
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(limited); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %v: %w", l.Addr(), err)
	}
	return nil
}

// paced limits the rate of requests from other machines.
func paced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connectionOf(r.Context()); c != nil {
			c.share.mark(c, true)
			if c.wait(r.Context(), c.share.requests) != nil {
				return // the client closed the connection
			}
		}
		h.ServeHTTP(w, r)
	})
}

// markIdle records that a connection's response has been sent completely.
func markIdle(conn net.Conn, state http.ConnState) {
	if c := counted(conn); c != nil && state == http.StateIdle {
		c.share.mark(c, false)
	}
}

// local reports whether a request comes from this machine.
func local(r *http.Request) bool {
	server, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	client, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero AddrPort for a unix socket
	return sameMachine(client.Addr(), server)
}

// sameMachine reports whether the client has the server's address or the server listens on
// a unix socket.
func sameMachine(client netip.Addr, server net.Addr) bool {
	switch server := server.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return server.AddrPort().Addr().Unmap() == client.Unmap()
	}
	return false
}
