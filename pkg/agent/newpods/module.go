package newpods

import (
	"context"
	"crypto/tls"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// Peers is how this agent finds those of other nodes, and what proves it to them.
type Peers struct {
	Agents      *Agents // nil asks none
	Certificate *tls.Certificate
	Port        string // where all agents answer
}

// Module returns the module. peers is called when an agent of the node is made.
func Module(peers func(node string) (Peers, error)) module.Module {
	return module.Module{Name: "new pods of other nodes", New: func(core *module.Core) (module.Part, error) {
		board := NewBoard()
		part := module.Part{Sandboxes: board.Set, Serve: []module.Handler{{To: module.Agents, Pattern: "GET " + Path, Handler: board}}}
		others, err := peers(core.Node)
		if err != nil || others.Agents == nil {
			return part, err
		}
		asker := NewAsker(Config{Peers: others, NodesAt: core.NodesAt, Set: core.SetSandboxesOf, Registerer: core.Registry})
		part.Tap, part.Admit, part.Loops = asker.Tap, others.Agents.Check, []func(context.Context) error{asker.Run}
		return part, nil
	}}
}
