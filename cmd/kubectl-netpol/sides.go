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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// service is the kind of Services, whose names stand for the pods behind them.
const service = "Service"

// kindOf returns the kind of that name, as kubectl calls it.
func kindOf(name string) (kind string, ok bool) {
	if slices.Contains([]string{"svc", "service", "services"}, strings.ToLower(name)) {
		return service, true
	}
	kind = workloads.KindNamed(name)
	return kind, kind != ""
}

// kindName returns the name that is printed for a kind, which may be one that is not known.
func kindName(kind string) string {
	if kind == service {
		return "svc"
	}
	return workloads.ShortName(kind)
}

// workloadName is the name of a workload in its namespace: "deploy/web", and for a pod
// without a workload its own.
func workloadName(w workloads.Ref) string {
	if w.Kind == workloads.Pod {
		return w.Name
	}
	return kindName(w.Kind) + "/" + w.Name
}

func ofWorkload(p *corev1.Pod) reachability.Side {
	w := workloads.Of(p)
	return reachability.Side{Namespace: w.Namespace, Name: workloadName(w), Replicated: w.Kind != workloads.Pod}
}

func ofPod(p *corev1.Pod) reachability.Side {
	return reachability.Side{Namespace: p.Namespace, Name: p.Name}
}

func ofNamespace(p *corev1.Pod) reachability.Side { return reachability.Side{Namespace: p.Namespace} }

// namesService reports whether a name is that of a Service.
func namesService(name string) bool {
	parts := strings.Split(name, "/")
	kind, ok := kindOf(parts[max(0, len(parts)-2)])
	return ok && kind == service && len(parts) > 1
}

// sideFinder finds the sides that names mean.
type sideFinder struct {
	cluster   *reachability.Cluster
	pods      []*corev1.Pod
	services  []*corev1.Service
	namespace string // of names without one
	limit     string // why some services may be missing
}

func (o *options) sideFinder(c *reachability.Cluster, pods []*corev1.Pod) *sideFinder {
	return &sideFinder{
		cluster: c, pods: pods, services: o.services, limit: o.serviceLimit,
		namespace: cmp.Or(o.namespace, o.defaultNamespace, metav1.NamespaceDefault),
	}
}

// find returns the side of a name: an address, a pod, a workload (deploy/web), or the pods
// behind a Service (svc/web), with the namespace before it, or without.
func (f *sideFinder) find(name string) (reachability.Side, error) {
	parts := strings.Split(name, "/")
	if isAddress(name) || len(parts) > 3 {
		return f.endpoint(name)
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
	e, err := f.cluster.Endpoint(name)
	if err != nil {
		return reachability.Side{}, err
	}
	side := reachability.Side{Name: name, Members: []reachability.Endpoint{e}}
	if namespace, pod, ok := strings.Cut(name, "/"); ok {
		side.Namespace, side.Name = namespace, pod
	}
	return side, nil
}

// anyKind returns the workload of a name, of whatever kind, and the error of a pod if there
// is none.
func (f *sideFinder) anyKind(namespace, name string) (reachability.Side, error) {
	kinds := map[string]bool{}
	for _, p := range f.pods {
		if w := workloads.Of(p); w.Namespace == namespace && w.Name == name {
			kinds[w.Kind] = true
		}
	}
	var found []string
	for kind := range kinds {
		found = append(found, kindName(kind)+"/"+name)
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
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
	case service:
		return f.behind(namespace, name)
	}
	want := workloads.Ref{Kind: kind, Namespace: namespace, Name: name}
	side := reachability.Side{Namespace: namespace, Name: workloadName(want), Replicated: true}
	return f.with(side, func(p *corev1.Pod) bool { return workloads.Of(p) == want })
}

// workloads returns the names of the workloads of a namespace.
func (f *sideFinder) workloads(namespace string) []string {
	names := map[string]bool{}
	for _, p := range f.pods {
		if w := workloads.Of(p); w.Namespace == namespace {
			names[workloadName(w)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// with gives a side the pods that it selects.
func (f *sideFinder) with(side reachability.Side, selects func(*corev1.Pod) bool) (reachability.Side, error) {
	var errs []error
	for _, p := range f.pods {
		if !selects(p) {
			continue
		}
		if e, err := f.cluster.Endpoint(p.Namespace + "/" + p.Name); err != nil {
			errs = append(errs, err)
		} else {
			side.Members = append(side.Members, e)
		}
	}
	switch {
	case len(side.Members) > 0:
		return side, nil
	case len(errs) > 0:
		return side, errors.Join(errs...)
	}
	if there := f.workloads(side.Namespace); len(there) > 0 {
		return side, fmt.Errorf("no pod of %s in namespace %s; there are those of %s", side.Name, side.Namespace, shorten(there))
	}
	return side, fmt.Errorf("no pod in namespace %s", side.Namespace)
}

// behind returns the pods behind a Service, at the ports that its ports are for.
func (f *sideFinder) behind(namespace, name string) (reachability.Side, error) {
	i := slices.IndexFunc(f.services, func(s *corev1.Service) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 {
		if f.limit != "" {
			return reachability.Side{}, fmt.Errorf("no service %s in namespace %s is known: %s", name, namespace, f.limit)
		}
		return reachability.Side{}, fmt.Errorf("no service %s in namespace %s", name, namespace)
	}
	spec := &f.services[i].Spec
	if len(spec.Selector) == 0 {
		return reachability.Side{}, fmt.Errorf("service %s/%s has no selector: what is behind it is not known", namespace, name)
	}
	side := reachability.Side{Namespace: namespace, Name: kindName(service) + "/" + name, Replicated: true}
	for _, p := range spec.Ports {
		target := p.TargetPort.String()
		if p.TargetPort == (intstr.IntOrString{}) {
			target = fmt.Sprint(p.Port)
		}
		port, err := reachability.ParsePort(target, cmp.Or(string(p.Protocol), "TCP"))
		if err != nil {
			return reachability.Side{}, fmt.Errorf("service %s/%s: targetPort: %w", namespace, name, err)
		}
		side.Ports = append(side.Ports, port)
	}
	selector := labels.SelectorFromSet(spec.Selector)
	return f.with(side, func(p *corev1.Pod) bool {
		return p.Namespace == namespace && selector.Matches(labels.Set(p.Labels))
	})
}
