// The suite command plays the scenarios of tests/netpol, or a folder of manifests, on the
// backends of this project and on live clusters.
//
//	go run ./tests/packets/suite -backend simulated
//	go run ./tests/packets/suite -backend netns -run 'except|block'
//	go run ./tests/packets/suite -backend netns -dir examples/shop -v
//	go run ./tests/packets/suite -backend netns-asking
//
// With the agents of netns-asking the kernel remembers no verdicts. Those of netns-rejecting answer
// what they deny. netns-upstream and netns-kube-router have the agents of others, from PATH, and
// netns-none has none: make compare.
package main

import (
	"context"

	"sigs.k8s.io/kube-network-policies/tests/model/simulated"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/suite"
	"sigs.k8s.io/kube-network-policies/tests/packets/backend"
)

func main() { command().Main() }

// command returns the command with the backends of this project.
func command() suite.Command {
	c := suite.Command{
		Default: "simulated",
		Backends: map[string]suite.NewBackend{
			"simulated":       func(context.Context) (netpol.Backend, error) { return simulated.New(simulated.Compiled), nil },
			"oracle":          func(context.Context) (netpol.Backend, error) { return simulated.New(simulated.Oracle), nil },
			"netns":           func(ctx context.Context) (netpol.Backend, error) { return backend.New(ctx) },
			"netns-asking":    func(ctx context.Context) (netpol.Backend, error) { return backend.New(ctx, "--remember-verdicts=0") },
			"netns-rejecting": func(ctx context.Context) (netpol.Backend, error) { return backend.New(ctx, backend.Reject) },
		},
		Reference: simulated.New(simulated.Compiled),
	}
	for name, peer := range backend.Peers {
		c.Backends["netns-"+name] = func(ctx context.Context) (netpol.Backend, error) { return backend.StartPeer(ctx, peer) }
	}
	return c
}
