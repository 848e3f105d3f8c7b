package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

// Answers configures what the agent answers: to the status writer what is in force, to agents of other
// nodes what modules answer.
type Answers struct {
	// BindAddress is the "host:port" where they are served. Empty serves none.
	BindAddress string
	// Access has the Client that lets the status writer read, and no other client.
	Access *httpserver.Access
}

// answers returns the handler of what the status writer and other agents ask, each of which gets what it
// needs.
func (a *agent) answers() http.Handler {
	writer, agents := http.NewServeMux(), http.NewServeMux()
	writer.Handle("GET "+inforce.Path, a.confirms.tracker)
	for _, p := range a.parts {
		for pattern, h := range p.Answer {
			agents.Handle(pattern, h)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tlskey.IsAgents(r.TLS.PeerCertificates[0]) {
			agents.ServeHTTP(w, r)
		} else {
			writer.ServeHTTP(w, r)
		}
	})
}

// withAgents returns access with the agents that a module admits, of nodes that exist: the API server is not
// asked for other ones.
func withAgents(access *httpserver.Access, mayBeNode func(name string) bool, admit func(context.Context, *x509.Certificate) error) *httpserver.Access {
	with := *access
	with.Streams = tlskey.IsAgents
	with.Client = func(ctx context.Context, c *x509.Certificate) error {
		if !tlskey.IsAgents(c) {
			return access.Client(ctx, c)
		}
		switch {
		case admit == nil:
			return errors.New("agents of other nodes may not ask")
		case !mayBeNode(c.Subject.CommonName):
			return errors.New("no such node is known")
		}
		return admit(ctx, c)
	}
	return &with
}
