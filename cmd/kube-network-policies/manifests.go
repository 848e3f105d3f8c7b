package main

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifests"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// manifests returns the module that reads the cluster from the folder of --manifests, if there is one.
func (o *options) manifests() module.Module {
	return module.Module{Name: "manifests", New: func(core *module.Core) (module.Part, error) {
		if o.folder == "" {
			return module.Part{}, nil
		}
		source, err := manifests.New(o.folder, func(pods []*corev1.Pod, nodes []*corev1.Node) {
			core.CloseIncomplete(addressesAt(core.Node, pods, nodes))
		}, core.Registry)
		if err != nil {
			return module.Part{}, err
		}
		core.Logger.Info("The cluster is read from manifests", "folder", o.folder)
		o.source = source
		return module.Part{Ready: source.Complete}, nil
	}}
}

// addressesAt returns the addresses of the pods of a node, and the ranges of them.
func addressesAt(node string, pods []*corev1.Pod, nodes []*corev1.Node) (addrs []netip.Addr, ranges []netip.Prefix) {
	for _, n := range nodes {
		if n.Name == node {
			ranges = compile.NewNode(n).PodRanges
		}
	}
	for _, pod := range pods {
		if p := compile.NewPod(pod); p.Node == node && p.OwnNetwork {
			addrs = append(addrs, p.Addrs...)
		}
	}
	return addrs, ranges
}
