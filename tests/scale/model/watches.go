package model

import (
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
)

// Watch is a watch of pods.
type Watch struct {
	policycache.PodQuery
	selector labels.Selector
}

// All is the watch of all pods.
var All = newWatch(policycache.PodQuery{})

func newWatch(q policycache.PodQuery) Watch {
	selector, err := labels.Parse(q.Labels)
	if err != nil {
		panic(err) // it was formatted
	}
	return Watch{q, selector}
}

// Has reports whether a pod is one of those that are watched.
func (c *Cluster) Has(w Watch, p Pod) bool {
	switch {
	case p.Node < 0:
		return false // no agent asks for pods without a node
	case w.Node != "":
		return w.Node == NodeName(p.Node)
	case w.Namespace != "" && w.Namespace != c.NamespaceName(p.Namespace):
		return false
	}
	return w.selector.Empty() || w.selector.Matches(p.Labels())
}

// PodsOfNodes returns the pods of the first nodes. Nodes are all alike, so they are as good as
// any.
func (c *Cluster) PodsOfNodes(nodes int) [][]Pod {
	of := make([][]Pod, nodes)
	for p := range c.Pods {
		if p.Node < nodes {
			of[p.Node] = append(of[p.Node], p)
		}
	}
	return of
}

// Needed returns the watches of an agent with --pod-watches=needed on a node with these pods,
// the watch of its own pods first, and at most limit of others.
func (c *Cluster) Needed(node int, pods []Pod, limit int) []Watch {
	state := clusterstate.New(clusterstate.Config{NodeName: NodeName(node), Partial: true, Features: compile.AllFeatures()})
	local := map[int]bool{}
	for _, p := range pods {
		state.Set(compile.NewPod(c.Object(p)))
		local[p.Namespace] = true
	}
	for i := range c.Namespaces {
		state.Set(c.Namespace(i))
		if !local[i] {
			continue // its policies select no pod of the node
		}
		for _, p := range c.Policies(i) {
			state.Set(p)
		}
	}
	state.Snapshot()
	watches := []Watch{newWatch(policycache.PodQuery{Node: NodeName(node)})}
	for _, set := range clusterstate.Cover(state.Needs(), limit) {
		watches = append(watches, newWatch(policycache.PodQuery{PodSet: set}))
	}
	return watches
}
