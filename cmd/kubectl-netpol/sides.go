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

// kindOf returns the kind that kubectl calls name.
func kindOf(name string) (kind string, ok bool) {
	kind = workloads.KindNamed(name)
	return kind, kind != ""
}

// workloadName returns the name of a workload in its namespace, such as "deploy/web", or
// the name of a pod without a workload.
func workloadName(w workloads.Ref) string {
	if w.Kind == workloads.Pod {
		return w.Name
	}
	return workloads.ShortName(w.Kind) + "/" + w.Name
}

func ofWorkload(p *corev1.Pod) reachability.Side {
	w := workloads.Of(p)
	return reachability.Side{Namespace: w.Namespace, Name: workloadName(w), Replicated: w.Kind != workloads.Pod || reachability.IsNew(p)}
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
	parts := strings.Split(name, "/")
	kind, ok := kindOf(parts[max(0, len(parts)-2)])
	return ok && kind == workloads.Service && len(parts) > 1
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
	parts := strings.Split(name, "/")
	if isAddress(name) || len(parts) > 3 {
		side, err := f.endpoint(name)
		return side, errors.Join(f.unused(name), err)
	}
	if len(parts) == 3 {
		kind, ok := kindOf(parts[1])
		if !ok {
			return reachability.Side{}, fmt.Errorf("%q: %s is no kind of workload", name, parts[1])
		}
		return f.ofKind(kind, parts[0], parts[2])
	}
	if len(parts) == 1 {
		parts = []string{f.namespace, name}
	} else if kind, ok := kindOf(parts[0]); ok && !f.hasPod(name) {
		return f.ofKind(kind, f.namespace, parts[1])
	}
	if f.hasPod(parts[0] + "/" + parts[1]) {
		return f.endpoint(parts[0] + "/" + parts[1])
	}
	return f.anyKind(parts[0], parts[1])
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
func (f *sideFinder) anyKind(namespace, name string) (reachability.Side, error) {
	kinds := map[string]bool{}
	for _, p := range f.pods {
		if w := workloads.Of(p); w.Namespace == namespace && w.Name == name {
			kinds[w.Kind] = true
		}
	}
	var found []string
	for kind := range kinds {
		found = append(found, workloads.ShortName(kind)+"/"+name)
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
		if outside := f.cluster.Outside(reachability.FirstCommon, f.services.translated()); name == outside.Name && namespace == f.namespace && len(outside.Members) > 0 {
			return outside, nil
		}
		return f.endpoint(namespace + "/" + name)
	case 1:
		kind, _, _ := strings.Cut(found[0], "/")
		named, _ := kindOf(kind)
		return f.ofKind(cmp.Or(named, kind), namespace, name)
	}
	return reachability.Side{}, fmt.Errorf("%q in namespace %s is %s: name one of them", name, namespace, strings.Join(found, " and "))
}

func (f *sideFinder) ofKind(kind, namespace, name string) (reachability.Side, error) {
	switch kind {
	case workloads.Pod:
		return f.endpoint(namespace + "/" + name)
	case workloads.Service:
		return f.serviceSide(namespace, name)
	}
	want := workloads.Ref{Kind: kind, Namespace: namespace, Name: name}
	side := reachability.Side{Namespace: namespace, Name: workloadName(want), Replicated: true}
	return f.addMembers(side, "no pod of "+side.Name, func(p *corev1.Pod) bool { return workloads.Of(p) == want })
}

// workloads returns the names of a namespace's workloads.
func (f *sideFinder) workloads(namespace string) []string {
	names := map[string]bool{}
	for _, p := range f.pods {
		if w := workloads.Of(p); w.Namespace == namespace {
			names[workloadName(w)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addMembers adds the selected pods to a side. none says that there are none.
func (f *sideFinder) addMembers(side reachability.Side, none string, selects func(*corev1.Pod) bool) (reachability.Side, error) {
	var errs []error
	for _, p := range f.pods {
		if !selects(p) {
			continue
		}
		all, err := f.cluster.Endpoints(p.Namespace + "/" + p.Name)
		if err != nil {
			errs = append(errs, err)
		}
		side.Members = append(side.Members, all...)
	}
	switch {
	case len(side.Members) > 0:
		return side, nil
	case len(errs) > 0:
		return side, errors.Join(errs...)
	}
	if existing := f.workloads(side.Namespace); len(existing) > 0 {
		return side, fmt.Errorf("%s in namespace %s; there are those of %s", none, side.Namespace, shorten(existing))
	}
	return side, fmt.Errorf("%s: no pod is in namespace %s", none, side.Namespace)
}
