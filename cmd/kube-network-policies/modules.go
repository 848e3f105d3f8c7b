package main

import (
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/confirmation"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/agent/names"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/agent/nodecheck"
	"sigs.k8s.io/kube-network-policies/pkg/agent/packets"
	"sigs.k8s.io/kube-network-policies/pkg/agent/serve"
	"sigs.k8s.io/kube-network-policies/pkg/agent/verdictcache"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// modules returns the optional parts of the agent. A line is all that it takes to leave one out.
func modules(o *options) []module.Module {
	remembered := &steer.Remembered{For: 30 * time.Second}
	o.cfg.Table = []steer.Part{remembered}
	return []module.Module{
		serve.Module(&o.serve),
		packets.Module(),
		flows.Module(),
		confirmation.Module(),
		newpods.Module(o.peers),
		bridges(),
		verdictcache.Module(remembered, &remembered.For),
		names.Module(o.names),
		nodecheck.Module(),
		o.manifests(),
	}
}

// peers configures the module newpods: without a key, this agent asks none.
func (o *options) peers(node string) (p newpods.Peers, err error) {
	if o.key == nil {
		return p, nil
	}
	namespace, err := o.Namespace()
	if err != nil {
		return p, err
	}
	core, err := apiclient.New(o.client, nil, corev1.SchemeGroupVersion)
	if err != nil {
		return p, err
	}
	_, port, err := net.SplitHostPort(o.serve.AnswersBindAddress)
	return newpods.Peers{Agents: newpods.NewAgents(apiclient.Pods(core, namespace), node, o.key.Leaf), Certificate: o.key, Port: port}, err
}

// names configures the module names.
func (o *options) names() names.Config {
	cfg := names.Config{Kinds: o.AdminKinds(), Features: o.Features, SnapshotCache: o.cfg.SnapshotCache}
	if o.api != nil {
		cfg.Cluster = o.api
	}
	return cfg
}
