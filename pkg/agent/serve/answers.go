package serve

import (
	"context"
	"crypto/x509"
	"net/http"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

// answers returns the handler of what the status writer and other agents ask, each of which gets what it
// needs.
func answers(all []module.Handler) http.Handler {
	writer, agents := http.NewServeMux(), http.NewServeMux()
	for _, h := range all {
		if h.To&module.Writer != 0 {
			writer.Handle(h.Pattern, h)
		}
		if h.To&module.Agents != 0 {
			agents.Handle(h.Pattern, h)
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

// withAgents returns access with the agents that admit lets ask.
func withAgents(access *httpserver.Access, admit func(context.Context, *x509.Certificate) error) *httpserver.Access {
	with := *access
	with.Streams = tlskey.IsAgents
	with.Client = func(ctx context.Context, c *x509.Certificate) error {
		if tlskey.IsAgents(c) {
			return admit(ctx, c)
		}
		return access.Client(ctx, c)
	}
	return &with
}
