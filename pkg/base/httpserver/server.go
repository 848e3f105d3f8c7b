// Package httpserver serves metrics and probes at a bounded cost. It limits connections and
// requests, and concurrent requests share one collection of metrics. With an Access it uses
// TLS and serves metrics only to clients that the Access allows. It does not know what is
// collected or who decides about access.
//
// Pods of this node have places for their connections, all other clients others. Within a
// group, a client can displace only clients with more connections than it has. A client is
// a pod, or a network in which one host may own every address. With TLS, a connection gets its place
// after the handshake, and the handshakes of each group of clients have a pace of their own.
//
// Clients on the same machine, such as the kubelet that probes a host-network pod, are a group whose
// requests have no pace. They are recognised because their address is also the server's, or because
// the server listens on a unix socket.
//
// If clients prove keys (Access.Client), those that have are apart from all other clients: they have
// places by key, and a pace of handshakes for the addresses where keys were proved lately. Who shares
// such an address has one turn among them, as has each of the others. A client that names the server
// by a secret has a turn of its own once it has proved its key with that name.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// DefaultAddress is where agents and status writer serve unless configured otherwise.
const DefaultAddress = ":9080"

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
		Help: "Connections that were closed because too many were open or waited for their TLS handshakes.",
	}, []string{"clients"})}
	reg.MustRegister(s.refused)
	for _, clients := range []string{thisNode, ourPods, otherClients, knownClients} {
		s.refused.WithLabelValues(clients)
	}
	return s
}

// The label values of refused connections.
const (
	thisNode     = "node"
	ourPods      = "pods"
	otherClients = "others"
	knownClients = "known" // that have proved a key, or that connect from where one was proved lately
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
		Handler:           bounded(paced(handler)),
		ReadHeaderTimeout: bounds.HeaderTime,
		ReadTimeout:       bounds.ReadTime,
		WriteTimeout:      bounds.WriteTime,
		IdleTimeout:       bounds.IdleTime,
		MaxHeaderBytes:    bounds.HeaderBytes - bounds.HeaderSlop,
		Protocols:         new(http.Protocols),
		ConnContext:       withConnection,
		ConnState:         markIdle,
		ErrorLog:          log.New(io.Discard, "", 0), // any client could fill the log
	}
	server.Protocols.SetHTTP1(true) // HTTP/2 has many requests on one connection
	if access != nil && access.Client != nil {
		server.SetKeepAlivesEnabled(false)
	}
	limited := newListener(l, s.pods, access, s.refused)
	var accepting sync.WaitGroup
	accepting.Go(func() { limited.run(ctx) })
	defer accepting.Wait()
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	defer limited.Close()
	if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %v: %w", l.Addr(), err)
	}
	return nil
}

// bounded refuses requests that are longer than any client's, and ends connections that have made
// many.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := false
		if c := connectionOf(r.Context()); c != nil {
			c.requests++
			last = c.requests >= bounds.RequestsPerConnection
		}
		status := 0
		switch {
		case len(r.RequestURI) > bounds.URLBytes:
			status = http.StatusRequestURITooLong
		case r.ContentLength != bounds.BodyBytes:
			status = http.StatusRequestEntityTooLarge
		}
		if last || status != 0 {
			w.Header().Set("Connection", "close")
		}
		if status != 0 {
			http.Error(w, http.StatusText(status), status)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// paced limits the rate of requests from other machines.
func paced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connectionOf(r.Context()); c != nil {
			c.places.mark(c, true)
			if c.places.requests != nil && c.wait(r.Context(), c.places.requests) != nil {
				return // the client closed the connection
			}
		}
		h.ServeHTTP(w, r)
	})
}

// markIdle records that a connection's response has been sent completely.
func markIdle(conn net.Conn, state http.ConnState) {
	if c := counted(conn); c != nil && state == http.StateIdle {
		c.places.mark(c, false)
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
