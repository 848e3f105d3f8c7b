package newpods

import (
	"context"
	"crypto/tls"
	"net/http"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// Peers is how this agent finds those of other nodes, and what proves it to them.
type Peers struct {
	Agents      *Agents // nil asks none
	Certificate *tls.Certificate
	Port        string // where all agents answer
}

// Module returns the module. It reads peers when an agent is made.
func Module(peers *Peers) module.Module {
	return module.Module{Name: "new pods of other nodes", New: func(core *module.Core) (module.Part, error) {
		board := NewBoard()
		part := module.Part{Sandboxes: board.Set, Answer: map[string]http.Handler{"GET " + Path: board}}
		if peers.Agents == nil {
			return part, nil
		}
		asker := NewAsker(Config{Peers: *peers, NodesAt: core.NodesAt, Set: core.SetSandboxesOf, Registerer: core.Registerer})
		part.Tap, part.Loops = asker.Tap, []func(context.Context) error{asker.Run}
		return part, nil
	}}
}
