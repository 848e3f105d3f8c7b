package main

import (
	"context"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/bridgefilter"
)

// bridges returns the module that filters frames at bridges.
func bridges() module.Module {
	return module.Module{Name: "bridges", New: func(core *module.Core) (module.Part, error) {
		f, err := bridgefilter.New(core.Registry)
		if err != nil {
			return module.Part{}, err
		}
		return module.Part{Bridges: f.Set, Repaired: f.Verify, Loops: []func(context.Context) error{f.Run}}, nil
	}}
}
