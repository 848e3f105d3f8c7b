package httpserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// Access decides who may read the paths of a Server, over TLS. Probes need no
// authentication because the kubelet sends none.
type Access struct {
	// Certificate returns the server's certificate for a connection.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Authorize returns nil if the holder of the bearer token may read a path. The client gets
	// the error if it is or wraps ErrUnauthenticated, ErrForbidden or ErrBusy. Any other error
	// means that no decision was possible; it may reveal something about the cluster, so the
	// client does not get it.
	Authorize func(ctx context.Context, path, token string) error
	// Client returns nil if the client with a certificate may read all paths. If it is not nil,
	// there are no tokens: clients need TLS 1.3 and a certificate, and Client is called after they have
	// proved the key. It has a few seconds.
	Client func(ctx context.Context, certificate *x509.Certificate) error
	// Named reports whether a client of Client may be the one that names the server so. Who shares its
	// address takes no turns of such a client before it has proved its key. Nil recognizes none.
	Named func(ctx context.Context, serverName string) bool
	// Streams reports whether a client of Client listens to streams: it has one connection, and each
	// is closed for a new one if there are too many. Other clients have places of their own.
	Streams func(certificate *x509.Certificate) bool
}

// Errors of Authorize.
var (
	ErrUnauthenticated = errors.New("the token is not valid")
	ErrForbidden       = errors.New("not allowed to read this")
	ErrBusy            = errors.New("too many unknown tokens, retry later")
)

// config returns the TLS configuration.
func (a *Access) config() *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: a.Certificate,
	}
	if a.Client != nil {
		config.MinVersion = tls.VersionTLS13
		config.ClientAuth = tls.RequireAnyClientCert
		config.SessionTicketsDisabled = true // each connection proves the key
	}
	return config
}

// guard wraps h so that it serves only what clients may read.
func (a *Access) guard(h http.Handler) http.Handler {
	if a.Client != nil {
		return h // it is served only to those that may read
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isProbe(r) {
			if err := a.authorize(r); err != nil {
				deny(w, err)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// deny answers a request that Authorize refused.
func deny(w http.ResponseWriter, err error) {
	status, text := statusOf(err), err.Error()
	if status == http.StatusInternalServerError {
		text = "access cannot be decided, see the log of the server"
	}
	http.Error(w, text, status)
}

func isProbe(r *http.Request) bool { return r.URL.Path == livez || r.URL.Path == readyz }

func (a *Access) authorize(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	switch {
	case !strings.EqualFold(scheme, "Bearer") || token == "":
		return errNoToken
	case len(token) > bounds.TokenBytes:
		return ErrUnauthenticated // the API server is not asked
	}
	return a.Authorize(r.Context(), r.URL.Path, token)
}

var errNoToken = errors.New("a bearer token is needed")

// statusOf returns the HTTP status for an error of Authorize.
func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoToken), errors.Is(err, ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, ErrBusy):
		return http.StatusTooManyRequests
	}
	return http.StatusInternalServerError
}
