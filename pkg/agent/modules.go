package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/engine/cri"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// newParts makes the parts of the modules.
func (a *agent) newParts() error {
	core := &module.Core{
		Node:        a.cfg.NodeName,
		Audit:       a.cfg.Audit,
		Logger:      a.logger,
		Registerer:  a.reg,
		State:       a.state,
		Learned:     learnedNames{a},
		Explain:     a.explain,
		Resteer:     a.steering.resteer,
		Connections: a.connections,

		Decides:       a.kernelDecides,
		EvaluateClass: func(c packet.Class) (policy.Decision, bool) { return a.enforcer.EvaluateClass(c) },
		ReportClass:   func(c packet.Class, d policy.Decision, packets uint64) { a.enforcer.ReportClass(c, d, packets) },
		Flushed:       func() { a.queues[0].Flushed() },
		Alone:         a.place.Alone,

		NodesAt:        func(addr netip.Addr) []string { return a.cache.NodesAt(addr) },
		SetSandboxesOf: func(node string, newestFirst []cri.Sandbox) { a.cache.SetSandboxesOf(node, newestFirst) },
	}
	for _, m := range a.cfg.Modules {
		p, err := m.New(core)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		a.parts = append(a.parts, p)
		if p.Observe != nil && a.steering.observe != nil {
			return fmt.Errorf("%s: another module observes packets", m.Name)
		}
		a.steering.observe = cmp.Or(p.Observe, a.steering.observe)
	}
	return nil
}

// learnedNames is what modules have learned.
type learnedNames struct{ *agent }

// Names implements policy.Learned.
func (l learnedNames) Names(pod, addr netip.Addr) *policy.Names {
	for i := range l.parts {
		if of := l.parts[i].Learned; of != nil {
			return of.Names(pod, addr)
		}
	}
	return nil
}

// explain returns what modules know of why egress denied a packet.
func (a *agent) explain(s *policy.Snapshot, q policy.Query, at time.Time) string {
	for _, p := range a.parts {
		if p.Explain != nil {
			if why := p.Explain(s, q, at); why != "" {
				return why
			}
		}
	}
	return ""
}

// kernelDecides returns the decision by which the kernel decides packets of a class, and since when.
func (a *agent) kernelDecides(c packet.Class) (d policy.Decision, since time.Time, ok bool) {
	if classes := a.classes(); classes != nil {
		return classes.Decides(c)
	}
	return d, since, false
}

// classes returns the Classes of the module that has any, nil if none has.
func (a *agent) classes() *module.Classes {
	for _, p := range a.parts {
		if p.Classes != nil {
			return p.Classes
		}
	}
	return nil
}

// modules returns the stages of the modules, which follow snapshots by prepare and withdraw.
func (a *agent) modules() (all stages) {
	for i, p := range a.parts {
		all = append(all, stage{name: a.cfg.Modules[i].Name, begin: p.Begin, loops: p.Loops, ready: p.Ready})
	}
	return all
}

// prepare prepares modules for a snapshot.
func (a *agent) prepare(_ context.Context, c change) {
	for _, p := range a.parts {
		if p.Prepare != nil {
			p.Prepare(c.snapshot)
		}
	}
}

// withdraw lets modules take back what a new snapshot reverses.
func (a *agent) withdraw(ctx context.Context, c change) {
	if c.before == nil {
		return // nothing was decided before the first snapshot
	}
	affected := c.affected()
	for _, p := range a.parts {
		if p.Withdraw != nil {
			p.Withdraw(ctx, affected.Addrs, affected.All)
		}
	}
}

// filterBridges passes to modules which ports of bridges need a filter.
func (a *agent) filterBridges(filters bool, otherPorts []string) {
	for _, p := range a.parts {
		if p.Bridges != nil {
			p.Bridges(filters, otherPorts)
		}
	}
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
