// Package serve is the module that serves metrics and probes, the probe socket, and what the status writer
// and agents of other nodes ask.
package serve

import (
	"context"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// Config configures what is served. Addresses are "host:port".
type Config struct {
	// MetricsBindAddress is the address of metrics and probes.
	MetricsBindAddress string
	// MetricsAccess decides who may read the metrics over TLS. Nil serves all clients over
	// plain HTTP.
	MetricsAccess *httpserver.Access
	// AnswersBindAddress is where the status writer and agents of other nodes ask. Empty serves none.
	AnswersBindAddress string
	// AnswersAccess has the Client that lets the status writer read, and no other client.
	AnswersAccess *httpserver.Access
	// ProbeSocket is the path of a unix socket with metrics, probes and what modules serve there. Unlike
	// MetricsBindAddress, it always reaches this agent and no other one of the node. Empty means no socket.
	ProbeSocket string
}

// Module returns the module that serves what cfg says when an agent is made.
func Module(cfg *Config) module.Module {
	return module.Module{Name: "serve", New: func(core *module.Core) (part module.Part, err error) {
		server := httpserver.New(httpserver.Handler(core.Registry, core.Live, core.Ready), core.Client, core.Registry)
		add := func(run func(context.Context) error) { part.Loops = append(part.Loops, run) }
		add(func(ctx context.Context) error {
			return serve(ctx, server, "metrics-bind-address", cfg.MetricsBindAddress, cfg.MetricsAccess)
		})
		if cfg.AnswersBindAddress != "" {
			add(func(ctx context.Context) error {
				return serve(ctx, server.Serving(answers(core.Handlers())), "status-bind-address", cfg.AnswersBindAddress, withAgents(cfg.AnswersAccess, core.Admit))
			})
		}
		if cfg.ProbeSocket != "" {
			add(func(ctx context.Context) error {
				return serveSocket(ctx, withHandlers(server, core.Handlers()), cfg.ProbeSocket)
			})
		}
		return part, nil
	}}
}

// withHandlers returns server with what is served at the probe socket.
func withHandlers(server *httpserver.Server, all []module.Handler) *httpserver.Server {
	for _, h := range all {
		if h.To&module.Socket != 0 {
			server = server.With(h.Pattern, h)
		}
	}
	return server
}
