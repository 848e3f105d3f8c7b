package model

import (
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Watch is a watch of pods.
type Watch struct {
	clusterwatch.PodQuery
	selector labels.Selector
}

// All is the watch of all pods.
var All = newWatch(clusterwatch.PodQuery{})

func newWatch(q clusterwatch.PodQuery) Watch {
	selector, err := labels.Parse(q.Labels)
	if err != nil {
		panic(err) // it was formatted
	}
	return Watch{q, selector}
}

// Has reports whether a watch selects a pod.
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

// PodsOfNodes returns the pods of the first nodes. All nodes are alike, so the choice does
// not matter.
func (c *Cluster) PodsOfNodes(nodes int) [][]Pod {
	byNode := make([][]Pod, nodes)
	for p := range c.Pods {
		if p.Node < nodes {
			byNode[p.Node] = append(byNode[p.Node], p)
		}
	}
	return byNode
}

// Needed returns the watches of an agent with --pod-watches=needed on a node with these
// pods: the watch of its own pods first, and then at most limit others.
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
	watches := []Watch{newWatch(clusterwatch.PodQuery{Node: NodeName(node)})}
	for _, set := range clusterstate.Cover(state.Needs(), limit) {
		watches = append(watches, newWatch(clusterwatch.PodQuery{PodSet: set}))
	}
	return watches
}
