package main

import (
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/agent/packets"
)

// modules returns the optional parts of the agent. A line is all that it takes to leave one out.
func modules(o *options) []module.Module {
	return []module.Module{
		packets.Module(),
		flows.Module(),
		newpods.Module(&o.peers),
	}
}
