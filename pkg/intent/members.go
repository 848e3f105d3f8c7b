package intent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// cluster finds the endpoints that expectations name.
type cluster struct {
	*reachability.Cluster
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
}

func newCluster(in clusterstate.Input, c *reachability.Cluster) *cluster {
	out := &cluster{Cluster: c, pods: in.Pods, namespaces: map[string]labels.Set{}}
	for _, n := range in.Namespaces {
		out.namespaces[n.Name] = n.Labels
	}
	return out
}

// members are the endpoints of one side.
type members struct {
	endpoints []reachability.Endpoint
	leftOut   []error // why each pod that cannot be evaluated cannot
}

// members returns the endpoints of a side. That there are none is an error: an
// expectation about nothing would always hold.
func (c *cluster) members(e *Endpoints) (members, error) {
	if e.name.text != "" {
		return c.named(e.name)
	}
	var chosen []*corev1.Pod
	for _, pod := range c.pods {
		if e.has(pod, c.namespaces[pod.Namespace]) {
			chosen = append(chosen, pod)
		}
	}
	for _, n := range e.except {
		before := len(chosen)
		chosen = slices.DeleteFunc(chosen, n.is)
		if len(chosen) == before {
			return members{}, fmt.Errorf("except %s: it is not among the pods", n.text)
		}
	}
	if len(chosen) == 0 {
		return members{}, fmt.Errorf("there are no %v", e)
	}
	return c.endpoints(chosen)
}

// has reports whether a pod, whose namespace has these labels, is in the group,
// exceptions aside.
func (e *Endpoints) has(pod *corev1.Pod, namespace labels.Set) bool {
	if e.namespace != "" && e.namespace != pod.Namespace || e.namespace == "" && !e.namespaces.Matches(namespace) {
		return false
	}
	return e.pods.Matches(labels.Set(pod.Labels))
}

// is reports whether a pod has the name, or is one of the workload of that name.
func (n name) is(pod *corev1.Pod) bool {
	if n.workload.Kind == workloads.Pod {
		return pod.Namespace == n.workload.Namespace && pod.Name == n.workload.Name
	}
	return workloads.Of(pod) == n.workload
}

// named returns the endpoints of a name.
func (c *cluster) named(n name) (members, error) {
	if n.address.IsValid() || n.workload.Kind == workloads.Pod {
		text := n.workload.String()
		if n.address.IsValid() {
			text = n.text
		}
		endpoint, err := c.Endpoint(text)
		return members{endpoints: []reachability.Endpoint{endpoint}}, err
	}
	var chosen []*corev1.Pod
	var others []string
	for _, pod := range c.pods {
		if n.is(pod) {
			chosen = append(chosen, pod)
		} else if ref := workloads.Of(pod); ref.Namespace == n.workload.Namespace {
			others = append(others, ref.Kind+" "+ref.Name)
		}
	}
	if len(chosen) == 0 {
		return members{}, fmt.Errorf("no pod of %s %q%s", n.workload.Kind, n.workload, near(others))
	}
	return c.endpoints(chosen)
}

// near lists the first few of the workloads that a namespace has.
func near(others []string) string {
	const most = 5
	slices.Sort(others)
	others = slices.Compact(others)
	switch {
	case len(others) == 0:
		return ": its namespace has no pods"
	case len(others) > most:
		others = append(others[:most], fmt.Sprintf("%d more", len(others)-most))
	}
	return "; its namespace has " + strings.Join(others, ", ")
}

// endpoints returns the pods that can be evaluated, in order of their names. Pods that have
// ended are not there. Those without an address are left out, unless all are.
func (c *cluster) endpoints(pods []*corev1.Pod) (members, error) {
	var m members
	var ended error
	for _, pod := range pods {
		e, err := c.Endpoint(pod.Namespace + "/" + pod.Name)
		switch {
		case err == nil:
			m.endpoints = append(m.endpoints, e)
		case compile.Ended(pod):
			ended = err
		default:
			m.leftOut = append(m.leftOut, err)
		}
	}
	if len(m.endpoints) == 0 {
		return m, errors.Join(append(m.leftOut, ended)...)
	}
	slices.SortFunc(m.endpoints, func(a, b reachability.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return m, nil
}
