// Package httpserver serves metrics and probes at a bounded cost: connections and requests
// are limited, and requests at the same time share one collection of metrics. With an Access
// it serves TLS, and metrics only to whom the Access allows. It does not know what is
// collected, nor who decides about access.
//
// Pods of this node have a share of their own, and all other clients another one. Within a share
// a client displaces only those that have more than it has. A client is a pod, or a network of
// which it may have every address.
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
)

const (
	// maxConnections bounds the open connections of a share, and maxPerClient those of
	// one client.
	maxConnections = 64
	maxPerClient   = 8
	// requestRate limits the requests of a share per second over time and at once. Requests
	// beyond the limit wait, one of each client at a time: waiting costs no CPU, while
	// clients would repeat a refused request. With 64 clients a request takes six seconds.
	requestRate = 10
	// maxHeader bounds the memory of a connection.
	maxHeader = 16 << 10
)

// Pods returns the pod of the cluster at an address, empty if none is known there, and whether
// the address belongs to pods of this node.
type Pods func(netip.Addr) (pod string, ours bool)

// Server serves one handler.
type Server struct {
	handler http.Handler
	pods    Pods
	refused *prometheus.CounterVec
}

// New returns a Server of h. With nil for pods every address belongs to others.
func New(h http.Handler, pods Pods, reg prometheus.Registerer) *Server {
	s := &Server{handler: h, pods: pods, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_http_connections_refused_total",
		Help: "Connections for metrics and probes that were closed because too many were open, by whether the clients are this node's pods.",
	}, []string{"clients"})}
	reg.MustRegister(s.refused)
	for _, clients := range []string{ourPods, otherClients} {
		s.refused.WithLabelValues(clients)
	}
	return s
}

// The values of the label of refused connections.
const (
	ourPods      = "pods"
	otherClients = "others"
)

// With returns a Server that also serves the requests of a pattern of http.ServeMux by h.
func (s *Server) With(pattern string, h http.Handler) *Server {
	mux := http.NewServeMux()
	mux.Handle("/", s.handler)
	mux.Handle(pattern, h)
	return &Server{handler: mux, pods: s.pods, refused: s.refused}
}

// Run serves requests on l until ctx ends: with access over TLS to whom it allows, and with
// nil as plain HTTP to all.
func (s *Server) Run(ctx context.Context, l net.Listener, access *Access) error {
	handler := s.handler
	if access != nil {
		handler = access.guard(handler)
	}
	server := &http.Server{
		Handler:           paced(handler),
		ReadHeaderTimeout: 5 * time.Second, // also for a handshake of TLS
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      15 * time.Second, // with the time that a request waits
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConnection,
		ConnState:         markIdle,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	limited := &listener{
		Listener: l, pods: s.pods,
		ours: newShare(s.refused.WithLabelValues(ourPods)), others: newShare(s.refused.WithLabelValues(otherClients)),
	}
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
func paced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connectionOf(r.Context()); c != nil {
			c.share.mark(c, true)
			if c.wait(r.Context(), c.share.requests) != nil {
				return // the client is gone
			}
		}
		h.ServeHTTP(w, r)
	})
}

// markIdle records that a request has been answered, and all of the answer is sent.
func markIdle(conn net.Conn, state http.ConnState) {
	if c := counted(conn); c != nil && state == http.StateIdle {
		c.share.mark(c, false)
	}
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
