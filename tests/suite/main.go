// The suite command plays the scenarios of tests/netpol, or a folder of manifests, on
// the backends of this project and on live clusters.
//
//	go run ./tests/suite -backend simulated
//	go run ./tests/suite -backend netns -run 'except|block'
//	go run ./tests/suite -backend netns -dir examples/shop -v
//	go run ./tests/suite -backend netns-asking
//
// The agents of netns-asking have no verdicts remembered by the kernel.
package main

import (
	"context"

	"sigs.k8s.io/kube-network-policies/tests/backends/netns"
	"sigs.k8s.io/kube-network-policies/tests/backends/simulated"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/suite"
)

func main() { command().Main() }

// command is the command with the backends of this project.
func command() suite.Command {
	return suite.Command{
		Default: "simulated",
		Backends: map[string]suite.NewBackend{
			"simulated":    func(context.Context) (netpol.Backend, error) { return simulated.New(simulated.Compiled), nil },
			"needed":       func(context.Context) (netpol.Backend, error) { return simulated.New(simulated.CompiledNeeded), nil },
			"oracle":       func(context.Context) (netpol.Backend, error) { return simulated.New(simulated.Oracle), nil },
			"netns":        func(ctx context.Context) (netpol.Backend, error) { return netns.New(ctx) },
			"netns-asking": func(ctx context.Context) (netpol.Backend, error) { return netns.New(ctx, "--remember-verdicts=0") },
		},
		Reference: simulated.New(simulated.Compiled),
	}
}
