// Package needed compiles clusters as seen by an agent with --pod-watches=needed: without the pods
// of other nodes that its policies do not need. Tests compare the result with one from all pods.
package needed

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Compile returns the snapshot of in's node after all needed pods have been listed.
func Compile(in clusterstate.Input) *policy.Snapshot {
	c := New(in)
	c.Snapshot()
	sets := clusterstate.Cover(c.Needs(), clusterwatch.MaxNeededWatches)
	List(c, sets, in.Pods)
	return c.Snapshot()
}

// New returns the Cluster of in's node before any pods of other nodes have been listed.
func New(in clusterstate.Input) *clusterstate.Cluster {
	c := clusterstate.New(clusterstate.Config{NodeName: in.NodeName, Partial: true, Features: in.Features, Audit: in.Audit})
	for _, o := range in.Namespaces {
		c.Set(o)
	}
	for _, o := range in.Nodes {
		c.Set(o)
	}
	for _, o := range in.CIDRGroups {
		c.Set(o)
	}
	for _, o := range in.Policies {
		c.Set(o)
	}
	for _, pod := range in.Pods {
		if pod.Spec.NodeName == in.NodeName {
			c.Set(compile.NewPod(pod))
		}
	}
	return c
}

// List adds the pods in sets to c, as a list of an API server does.
func List(c *clusterstate.Cluster, sets []clusterstate.PodSet, pods []*corev1.Pod) {
	for _, pod := range pods {
		if InAny(sets, pod) {
			c.Set(compile.NewPod(pod))
		}
	}
	c.SetListed(sets)
}

// InAny reports whether an API server would list the pod for one of sets.
func InAny(sets []clusterstate.PodSet, pod *corev1.Pod) bool {
	return slices.ContainsFunc(sets, func(s clusterstate.PodSet) bool {
		selector, err := labels.Parse(s.Labels)
		if err != nil {
			panic(err)
		}
		return (s.Namespace == "" || s.Namespace == pod.Namespace) && selector.Matches(labels.Set(pod.Labels))
	})
}
