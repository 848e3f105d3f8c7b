package intent

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// cluster finds the endpoints that expectations name.
type cluster struct {
	*reachability.Cluster
	names      Names
	pods       []*corev1.Pod // those that have not ended
	namespaces map[string]labels.Set
}

func newCluster(in clusterstate.Input, c *reachability.Cluster, names Names) *cluster {
	out := &cluster{Cluster: c, names: names, namespaces: map[string]labels.Set{}}
	out.pods = slices.DeleteFunc(slices.Clone(in.Pods), compile.Ended)
	for _, n := range in.Namespaces {
		out.namespaces[n.Name] = n.Labels
	}
	return out
}

// group returns the endpoints of a group. An empty one is an error: an expectation about no connection
// would always hold.
func (c *cluster) group(e *Endpoints) (side reachability.Side, err error) {
	var chosen []*corev1.Pod
	for _, pod := range c.pods {
		if e.has(pod, c.namespaces[pod.Namespace]) {
			chosen = append(chosen, pod)
		}
	}
	for _, name := range e.except {
		excepted, _, err := c.names.Client(name)
		if err != nil {
			return side, fmt.Errorf("except %s: %w", name, err)
		}
		before := len(chosen)
		chosen = slices.DeleteFunc(chosen, func(p *corev1.Pod) bool {
			return slices.ContainsFunc(excepted.Members, func(m reachability.Endpoint) bool { return m.Name == p.Namespace+"/"+p.Name })
		})
		if len(chosen) == before {
			return side, fmt.Errorf("except %s: it is not among the pods", name)
		}
	}
	if len(chosen) == 0 {
		return side, fmt.Errorf("there are no %v", e)
	}
	side.Members, side.LeftOut, err = c.Members(chosen)
	return side, err
}

// has reports whether the group contains a pod, whose namespace has these labels. It
// ignores exceptions.
func (e *Endpoints) has(pod *corev1.Pod, namespace labels.Set) bool {
	if e.namespace != "" && e.namespace != pod.Namespace || e.namespace == "" && !e.namespaces.Matches(namespace) {
		return false
	}
	return e.pods.Matches(labels.Set(pod.Labels))
}
