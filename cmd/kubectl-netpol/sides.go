package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
)

func ofWorkload(p *corev1.Pod) reachability.Side {
	w := workloads.Of(p)
	return reachability.Side{Namespace: w.Namespace, Name: w.Title(), Replicated: w.Kind != workloads.Pod || reachability.IsNew(p)}
}

func ofPod(p *corev1.Pod) reachability.Side {
	return reachability.Side{Namespace: p.Namespace, Name: p.Name, Replicated: reachability.IsNew(p)}
}

// workloadOf returns the name of the workload of a pod, and its node if it has the node's
// network.
func workloadOf(p *corev1.Pod) string {
	side := ofWorkload(p)
	if p.Spec.HostNetwork && side.Replicated && p.Spec.NodeName != "" {
		return side.String() + " on " + p.Spec.NodeName
	}
	return side.String()
}

func ofNamespace(p *corev1.Pod) reachability.Side { return reachability.Side{Namespace: p.Namespace} }

// namesService reports whether a name is that of a Service.
func namesService(name string) bool {
	w, err := workloads.Parse(name)
	return err == nil && w.Kind == workloads.Service
}

// sideFinder resolves names to sides.
type sideFinder struct {
	cluster   *reachability.Cluster
	pods      []*corev1.Pod
	namespace string // of names without one
	services
}

func (o *options) sideFinder(c *reachability.Cluster, pods []*corev1.Pod) *sideFinder {
	return &sideFinder{
		cluster: c, pods: pods, services: o.services,
		namespace: cmp.Or(o.namespace, o.defaultNamespace, metav1.NamespaceDefault),
	}
}

// find returns the side of a name: an address, a pod, a workload (deploy/web), or the pods
// behind a Service (svc/web), with or without a namespace.
func (f *sideFinder) find(name string) (reachability.Side, error) {
	if isAddress(name) {
		side, err := f.endpoint(name)
		return side, errors.Join(f.unused(name), err)
	}
	w, err := workloads.Parse(name)
	if err != nil {
		return reachability.Side{}, err
	}
	if f.hasPod(name) {
		return f.endpoint(name)
	}
	w.Namespace = cmp.Or(w.Namespace, f.namespace)
	if w.Kind != "" {
		return f.ofKind(w)
	}
	if f.hasPod(w.String()) {
		return f.endpoint(w.String())
	}
	return f.anyKind(w)
}

func (f *sideFinder) hasPod(name string) bool {
	return slices.ContainsFunc(f.pods, func(p *corev1.Pod) bool { return p.Namespace+"/"+p.Name == name })
}

// endpoint returns the side of one pod or address.
func (f *sideFinder) endpoint(name string) (reachability.Side, error) {
	all, err := f.cluster.Endpoints(name)
	if err != nil {
		return reachability.Side{}, err
	}
	side := reachability.Side{Name: name, Members: all}
	if namespace, pod, ok := strings.Cut(name, "/"); ok {
		side.Namespace, side.Name = namespace, pod
	}
	return side, nil
}

// anyKind returns the only workload of that name, whatever its kind. If there is none, it
// returns the error of the look-up as a pod.
func (f *sideFinder) anyKind(named workloads.Ref) (reachability.Side, error) {
	var found []workloads.Ref
	for _, p := range f.pods {
		if w := workloads.Of(p); w.Namespace == named.Namespace && w.Name == named.Name && !slices.Contains(found, w) {
			found = append(found, w)
		}
	}
	switch len(found) {
	case 0:
		if outside := f.cluster.Outside(reachability.FirstCommon, f.services.translated()); named.Name == outside.Name && named.Namespace == f.namespace && len(outside.Members) > 0 {
			return outside, nil
		}
		return f.endpoint(named.String())
	case 1:
		return f.ofKind(found[0])
	}
	var titles []string
	for _, w := range found {
		titles = append(titles, w.Title())
	}
	slices.Sort(titles)
	return reachability.Side{}, fmt.Errorf("%q in namespace %s is %s: name one of them", named.Name, named.Namespace, strings.Join(titles, " and "))
}

func (f *sideFinder) ofKind(w workloads.Ref) (reachability.Side, error) {
	switch w.Kind {
	case workloads.Pod:
		return f.endpoint(w.String())
	case workloads.Service:
		return f.serviceSide(w.Namespace, w.Name)
	}
	side := reachability.Side{Namespace: w.Namespace, Name: w.Title(), Replicated: true}
	return f.addMembers(side, "no pod of "+side.Name, func(p *corev1.Pod) bool { return workloads.Of(p) == w })
}

// workloads returns the names of a namespace's workloads.
func (f *sideFinder) workloads(namespace string) []string {
	names := map[string]bool{}
	for _, p := range f.pods {
		if w := workloads.Of(p); w.Namespace == namespace {
			names[w.Title()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addMembers adds the selected pods to a side. none says that there are none.
func (f *sideFinder) addMembers(side reachability.Side, none string, selects func(*corev1.Pod) bool) (_ reachability.Side, err error) {
	selected := slices.DeleteFunc(slices.Clone(f.pods), func(p *corev1.Pod) bool { return !selects(p) })
	if len(selected) > 0 {
		side.Members, side.LeftOut, err = f.cluster.Members(selected)
		return side, err
	}
	if existing := f.workloads(side.Namespace); len(existing) > 0 {
		return side, fmt.Errorf("%s in namespace %s; there are those of %s", none, side.Namespace, shorten(existing))
	}
	return side, fmt.Errorf("%s: no pod is in namespace %s", none, side.Namespace)
}
