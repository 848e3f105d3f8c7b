package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// Answers configures what the agent answers: to the status writer what is in force, to agents of other
// nodes its new pods.
type Answers struct {
	// BindAddress is the "host:port" where they are served. Empty serves none.
	BindAddress string
	// Access has the Client that lets the status writer read, and no other client.
	Access *httpserver.Access
	// Agents finds the agents of other nodes, and Certificate proves this one to them. Nil asks none.
	Agents      *newpods.Agents
	Certificate *tls.Certificate
}

// answers returns the handler of what the status writer and other agents ask, each of which gets what it
// needs.
func (a *agent) answers() http.Handler {
	writer, agents := http.NewServeMux(), http.NewServeMux()
	writer.Handle("GET "+inforce.Path, a.confirms.tracker)
	agents.Handle("GET "+newpods.Path, a.newPods)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tlskey.IsAgents(r.TLS.PeerCertificates[0]) {
			agents.ServeHTTP(w, r)
		} else {
			writer.ServeHTTP(w, r)
		}
	})
}

// ofNodes returns access without agents of nodes that do not exist: the API server is not asked for these.
func ofNodes(access *httpserver.Access, mayBeNode func(name string) bool) *httpserver.Access {
	of := *access
	of.Client = func(ctx context.Context, c *x509.Certificate) error {
		if tlskey.IsAgents(c) && !mayBeNode(c.Subject.CommonName) {
			return errors.New("no such node is known")
		}
		return access.Client(ctx, c)
	}
	return &of
}

// newAsker returns what asks other agents for their new pods, nil if they are not asked.
func (a *agent) newAsker() (*newpods.Asker, error) {
	if a.cfg.Answers.Agents == nil {
		return nil, nil
	}
	_, port, err := net.SplitHostPort(a.cfg.Answers.BindAddress)
	if err != nil {
		return nil, fmt.Errorf("status-bind-address: %w", err)
	}
	return newpods.NewAsker(newpods.Config{
		Agents:      a.cfg.Answers.Agents,
		Certificate: a.cfg.Answers.Certificate,
		Port:        port,
		NodesAt:     func(addr netip.Addr) []string { return a.cache.NodesAt(addr) },
		Set:         func(node string, found []clusterstate.Sandbox) { a.cache.SetSandboxesOf(node, found) },
		Registerer:  a.reg,
	}), nil
}
