package main

import (
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/agent/names"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/agent/packets"
	"sigs.k8s.io/kube-network-policies/pkg/agent/verdictcache"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// modules returns the optional parts of the agent. A line is all that it takes to leave one out.
func modules(o *options) []module.Module {
	remembered := &steer.Remembered{For: 30 * time.Second}
	o.cfg.Table = []steer.Part{remembered}
	return []module.Module{
		packets.Module(),
		flows.Module(),
		newpods.Module(&o.peers),
		bridges(),
		verdictcache.Module(remembered, &remembered.For),
		names.Module(o.names),
	}
}

// names configures the module names.
func (o *options) names() names.Config {
	cfg := names.Config{Kinds: o.AdminKinds(), Features: o.Features, SnapshotCache: o.cfg.SnapshotCache}
	if o.api != nil {
		cfg.Cluster = o.api
	}
	return cfg
}
