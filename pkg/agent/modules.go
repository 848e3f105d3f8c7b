package agent

import (
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
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

// withModules returns server with the handlers of the modules.
func (a *agent) withModules(server *httpserver.Server) *httpserver.Server {
	for _, p := range a.parts {
		for pattern, h := range p.Serve {
			server = server.With(pattern, h)
		}
	}
	return server
}
