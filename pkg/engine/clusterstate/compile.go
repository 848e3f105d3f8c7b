package clusterstate

import (
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// Input is everything that a node knows about its cluster, for one snapshot. The objects are
// read-only and in any order.
type Input struct {
	NodeName   string // as in Config
	AllNodes   bool   // as in Config
	Features   compile.Features
	Audit      bool // as in Config
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	CIDRGroups []*proposed.CIDRGroup
	Policies   []compile.Object // of the kinds in compile.Kinds
}

// Compile returns the snapshot of in.
func Compile(in Input) *policy.Snapshot { return newFrom(in).Snapshot() }

// newFrom returns a Cluster with the objects of in.
func newFrom(in Input) *Cluster {
	return New(Config{NodeName: in.NodeName, AllNodes: in.AllNodes, Features: in.Features, Audit: in.Audit}).setInput(in)
}

// setInput sets all objects of in.
func (c *Cluster) setInput(in Input) *Cluster {
	setAll(c, in.Namespaces)
	setAll(c, in.Nodes)
	setAll(c, in.CIDRGroups)
	setAll(c, in.Policies)
	for _, p := range in.Pods {
		c.Set(compile.NewPod(p))
	}
	return c
}

func setAll[O any](c *Cluster, objects []O) {
	for _, o := range objects {
		c.Set(o)
	}
}
