package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/cri"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// newParts makes the parts of the modules.
func (a *agent) newParts() error {
	core := &module.Core{
		Node:     a.cfg.NodeName,
		Audit:    a.cfg.Audit,
		Logger:   a.logger,
		Registry: a.reg,
		Live:     a.live,
		Ready:    a.readiness,
		Handlers: a.handlers,
		Admit: func(ctx context.Context, c *x509.Certificate) error {
			return admit(ctx, c, a.cache.MayBeNode, a.single.Admit)
		},
		Client:  a.client,
		State:   a.state,
		Facts:   a.facts,
		Learned: learnedNames{a},
		Explain: a.explain,
		Resteer: a.steering.resteer,

		Problem:     a.notInForce,
		Following:   a.following,
		Uncertain:   a.uncertain,
		WaitApplied: func(ctx context.Context) error { return a.steering.steerer.WaitApplied(ctx) },
		WaitMarked:  func(ctx context.Context) error { return a.blocker.WaitMarked(ctx) },

		CloseIncomplete: a.steering.closeIncomplete,
		Connections:     a.connections,

		Decides:       a.kernelDecides,
		EvaluateClass: func(c packet.Class) (policy.Decision, bool) { return a.enforcer.EvaluateClass(c) },
		ReportClass:   func(c packet.Class, d policy.Decision, packets uint64) { a.enforcer.ReportClass(c, d, packets) },
		Flushed:       func() { a.queues[0].Flushed() },
		Alone:         a.place.Alone,

		NodesAt:        func(addr netip.Addr) []string { return a.cache.NodesAt(addr) },
		SetSandboxesOf: func(node string, newestFirst []cri.Sandbox) { a.cache.SetSandboxesOf(node, newestFirst) },
	}
	owners := map[string]string{ownPattern: "agent"}
	for _, m := range a.cfg.Modules {
		p, err := m.New(core)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if err := a.adopt(m.Name, p, owners); err != nil {
			return err
		}
		a.parts = append(a.parts, p)
	}
	a.steering.observe = a.single.Observe
	return nil
}

// adopt sets the hooks that only one module may have. owners are the modules that have one, by hook, and
// that serve a pattern.
func (a *agent) adopt(name string, p module.Part, owners map[string]string) error {
	for _, h := range p.Serve {
		if other := owners[h.Pattern]; other != "" {
			return fmt.Errorf("modules %s and %s both serve %s", other, name, h.Pattern)
		}
		owners[h.Pattern] = name
	}
	mine, theirs := reflect.ValueOf(&a.single).Elem(), reflect.ValueOf(p.Single)
	for field, hook := range theirs.Fields() {
		if hook.IsZero() {
			continue
		}
		if other := owners[field.Name]; other != "" {
			return fmt.Errorf("modules %s and %s both have %s", other, name, field.Name)
		}
		owners[field.Name] = name
		mine.FieldByIndex(field.Index).Set(hook)
	}
	return nil
}

// learnedNames is what a module has learned.
type learnedNames struct{ *agent }

// Names implements policy.Learned.
func (l learnedNames) Names(pod, addr netip.Addr) *policy.Names {
	if l.single.Learned == nil {
		return nil
	}
	return l.single.Learned.Names(pod, addr)
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
	if a.single.Classes == nil {
		return d, since, false
	}
	return a.single.Classes.Decides(c)
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

// contains is called with the contents of the published snapshot.
func (a *agent) contains(c clusterwatch.Contents) {
	for _, p := range a.parts {
		if p.Contains != nil {
			p.Contains(c.Versions, c.Restores)
		}
	}
}

// nodeChanged is called when the Node of the agent appears or disappears.
func (a *agent) nodeChanged() {
	for _, p := range a.parts {
		if p.NodeChanged != nil {
			p.NodeChanged()
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

// ownPattern is of the requests that no module serves.
const ownPattern = "GET /table"

// handlers returns what this agent serves.
func (a *agent) handlers() []module.Handler {
	all := []module.Handler{{To: module.Socket, Pattern: ownPattern, Handler: http.HandlerFunc(a.table)}}
	for _, p := range a.parts {
		all = append(all, p.Serve...)
	}
	return all
}

// admit admits an agent of a node that may exist as by says: the API server is not asked for other ones.
func admit(ctx context.Context, c *x509.Certificate, mayBeNode func(name string) bool, by func(context.Context, *x509.Certificate) error) error {
	switch {
	case by == nil:
		return errors.New("agents of other nodes may not ask")
	case !mayBeNode(c.Subject.CommonName):
		return errors.New("no such node is known")
	}
	return by(ctx, c)
}
