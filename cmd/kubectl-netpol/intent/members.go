package intent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// cluster finds the endpoints that expectations name.
type cluster struct {
	*reachability.Cluster
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	services   Services // nil if there are none
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
	leftOut   []error // one reason for each pod that cannot be evaluated
}

// members returns the endpoints of a side. An empty side is an error: an expectation about
// no connection would always hold.
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
		chosen = slices.DeleteFunc(chosen, n.matches)
		if len(chosen) == before {
			return members{}, fmt.Errorf("except %s: it is not among the pods", n.text)
		}
	}
	if len(chosen) == 0 {
		return members{}, fmt.Errorf("there are no %v", e)
	}
	return c.endpoints(chosen)
}

// has reports whether the group contains a pod, whose namespace has these labels. It
// ignores exceptions.
func (e *Endpoints) has(pod *corev1.Pod, namespace labels.Set) bool {
	if e.namespace != "" && e.namespace != pod.Namespace || e.namespace == "" && !e.namespaces.Matches(namespace) {
		return false
	}
	return e.pods.Matches(labels.Set(pod.Labels))
}

// matches reports whether the name is that of the pod or of its workload.
func (n name) matches(pod *corev1.Pod) bool {
	if n.workload.Kind == workloads.Pod {
		return pod.Namespace == n.workload.Namespace && pod.Name == n.workload.Name
	}
	return workloads.Of(pod) == n.workload
}

// named returns the endpoints of a name.
func (c *cluster) named(n name) (members, error) {
	switch {
	case n.outside:
		return c.outside()
	case n.address.IsValid():
		endpoint, err := c.Endpoint(n.text)
		return members{endpoints: []reachability.Endpoint{endpoint}}, err
	case n.workload.Kind == workloads.Pod:
		endpoints, err := c.Endpoints(n.workload.String())
		if kinds := c.kindsOf(n.workload); err != nil && len(kinds) == 1 {
			n.workload.Kind = kinds[0]
			return c.named(n)
		} else if err != nil && len(kinds) > 1 {
			err = fmt.Errorf("%s is the name of a %s: write the kind, %s/%s", n.text, strings.Join(kinds, " and of a "), n.workload.Namespace, workloads.Ref{Kind: kinds[0], Name: n.workload.Name}.Title())
		}
		return members{endpoints: endpoints}, err
	case n.workload.Kind == workloads.Service:
		if c.services == nil {
			return members{}, fmt.Errorf("no service %v", n.workload)
		}
		endpoints, err := c.services.Named(n.workload.Namespace, n.workload.Name)
		return members{endpoints: endpoints}, err
	}
	var chosen []*corev1.Pod
	var siblings []string
	for _, pod := range c.pods {
		if n.matches(pod) {
			chosen = append(chosen, pod)
		} else if ref := workloads.Of(pod); ref.Namespace == n.workload.Namespace {
			siblings = append(siblings, ref.Kind+" "+ref.Name)
		}
	}
	if len(chosen) == 0 {
		return members{}, fmt.Errorf("no pod of %s %q%s", n.workload.Kind, n.workload, near(siblings))
	}
	return c.endpoints(chosen)
}

// kindsOf returns the kinds of workloads that have the name of a pod that there is not.
func (c *cluster) kindsOf(pod workloads.Ref) []string {
	if slices.ContainsFunc(c.pods, name{workload: pod}.matches) {
		return nil
	}
	var kinds []string
	for _, p := range c.pods {
		if w := workloads.Of(p); w.Namespace == pod.Namespace && w.Name == pod.Name {
			kinds = append(kinds, w.Kind)
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// outside returns addresses that stand for all outside of the cluster.
func (c *cluster) outside() (members, error) {
	endpoints := c.Outside(reachability.FirstCommon, reachability.Translated{}).Members
	if c.services != nil {
		endpoints = c.services.Outside()
	}
	if len(endpoints) == 0 {
		return members{}, errors.New("no address is outside of the cluster: name one")
	}
	return members{endpoints: endpoints}, nil
}

// near lists the first few workloads of the namespace.
func near(names []string) string {
	if len(names) == 0 {
		return ": its namespace has no pods"
	}
	slices.Sort(names)
	return "; its namespace has " + words.Few(slices.Compact(names), 5, ", ")
}

// endpoints returns the pods that can be evaluated, ordered by name. Pods that have ended
// are ignored. Pods without an address are left out; if all are, that is an error.
func (c *cluster) endpoints(pods []*corev1.Pod) (members, error) {
	var m members
	var ended error
	for _, pod := range pods {
		all, err := c.Endpoints(pod.Namespace + "/" + pod.Name)
		switch {
		case err == nil:
			m.endpoints = append(m.endpoints, all...)
		case compile.Ended(pod):
			ended = err
		default:
			m.leftOut = append(m.leftOut, err)
		}
	}
	if len(m.endpoints) == 0 {
		return m, errors.Join(append(m.leftOut, ended)...)
	}
	slices.SortStableFunc(m.endpoints, func(a, b reachability.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return m, nil
}
