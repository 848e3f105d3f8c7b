package suite_test

import (
	"context"
	"fmt"
	"os"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/suite"
)

// nothing is a backend without any feature, so that no scenario can be played on it. A real
// one has a cluster of some kind.
type nothing struct{ netpol.Backend }

func (nothing) Supports() netpol.Support { return netpol.Support{} }
func (nothing) Close() error             { return nil }

// A program with its own backend has the same command line as the one for live clusters.
func ExampleCommand_Run() {
	command := suite.Command{
		Default:  "nothing",
		Backends: map[string]suite.NewBackend{"nothing": func(context.Context) (netpol.Backend, error) { return nothing{}, nil }},
	}
	err := command.Run(context.Background(), os.Stdout, []string{"-run", "^default deny of ingress to a namespace$"})
	fmt.Println("error:", err)
	// Output:
	// default deny of ingress to a namespace: not supported by this backend: 2 nodes
	// nothing: 0 scenarios, 0 steps, 0 cells in 0.0 s (slowest scenario 0.0 s): 0 failed; not supported by this backend: 1 scenarios, 648 cells in all
	// error: <nil>
}
