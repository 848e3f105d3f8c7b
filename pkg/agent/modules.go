package agent

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/engine/cri"
)

// newParts makes the parts of the modules.
func (a *agent) newParts() (parts []module.Part) {
	core := &module.Core{
		Node:        a.cfg.NodeName,
		Audit:       a.cfg.Audit,
		Logger:      a.logger,
		Registerer:  a.reg,
		State:       a.state,
		Learned:     a.names.learned(),
		Why:         a.names.why(),
		Connections: a.connections,

		NodesAt:        func(addr netip.Addr) []string { return a.cache.NodesAt(addr) },
		SetSandboxesOf: func(node string, newestFirst []cri.Sandbox) { a.cache.SetSandboxesOf(node, newestFirst) },
	}
	if a.verdicts != nil {
		core.Remembers = a.verdicts.Remembers
	}
	for _, m := range a.cfg.Modules {
		parts = append(parts, m.New(core))
	}
	return parts
}

// modules returns the stages of the modules, which follow no snapshots.
func (a *agent) modules() (all stages) {
	for i, p := range a.parts {
		all = append(all, stage{name: a.cfg.Modules[i].Name, loops: p.Loops})
	}
	return all
}

// setSandboxes replaces the sandboxes of this node.
func (a *agent) setSandboxes(newestFirst []cri.Sandbox) {
	a.cache.SetSandboxes(newestFirst)
	for _, p := range a.parts {
		if p.Sandboxes != nil {
			p.Sandboxes(newestFirst)
		}
	}
}

// withModules returns server with the handlers of the modules.
func (a *agent) withModules(server *httpserver.Server) *httpserver.Server {
	for _, p := range a.parts {
		for pattern, h := range p.Serve {
			server = server.With(pattern, h)
		}
	}
	return server
}
