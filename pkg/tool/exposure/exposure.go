// Package exposure finds the pods that Ingresses and the routes of the Gateway API expose,
// and whether policies let the pods of their controllers in. It reads the few fields that
// this takes, and knows the controllers whose pods have well-known labels. It is pure,
// without I/O or clock.
package exposure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/tool/reachability"
)

// Input is a cluster to evaluate.
type Input struct {
	Cluster  *reachability.Cluster
	Pods     []*corev1.Pod // of Cluster
	Services []*corev1.Service
	// Objects are Ingresses, routes, Gateways and their classes: objects of Kinds, in any order.
	Objects []*unstructured.Unstructured
	Family  reachability.Family
}

// LetIn says which pods of a controller reach which of the exposed pods.
type LetIn string

// The answers. Unknown is for controllers whose pods are not known.
const (
	Unknown LetIn = "unknown"
	None    LetIn = "none"
	Some    LetIn = "some"
	All     LetIn = "all"
)

// Exposure is a port of pods that an Ingress or a route exposes through one controller.
type Exposure struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Hosts     []string `json:"hosts,omitempty"`
	Service   string   `json:"service"` // "namespace/name"
	Pods      []string `json:"pods"`    // those behind the Service, "namespace/name"
	Port      string   `json:"port"`    // of the pods, "TCP 8080"
	// Controller are the pods that send the requests, "namespace/name".
	Controller []string `json:"controller,omitempty"`
	LetIn      LetIn    `json:"letIn"`
	Why        string   `json:"why,omitempty"` // why LetIn is unknown

	Field  string            `json:"-"` // of the backend in the object
	Target reachability.Port `json:"-"` // the port as it is
}

// By returns the Ingress or route with its first hosts, "Ingress shop/web (shop.example.com)".
func (e *Exposure) By() string {
	const most = 3
	by := fmt.Sprintf("%s %s/%s", e.Kind, e.Namespace, e.Name)
	hosts := slices.Clone(e.Hosts[:min(most, len(e.Hosts))])
	if more := len(e.Hosts) - most; more > 0 {
		hosts = append(hosts, fmt.Sprintf("%d more", more))
	}
	if len(hosts) > 0 {
		by += " (" + strings.Join(hosts, ", ") + ")"
	}
	return printable.Text(by)
}

// Find returns what the objects expose, ordered by the exposed pods. What has no Service or no
// pods in the input is left out.
func Find(in *Input) []Exposure {
	index := newPodIndex(in)
	services := map[string]*corev1.Service{}
	for _, s := range in.Services {
		services[s.Namespace+"/"+s.Name] = s
	}
	var found []Exposure
	var controllers, backends []reachability.Side
	rows, columns := map[string]int{}, map[string]int{}
	var cells [][2]int // of found: row and column, -1 for a controller that is not known
	for _, e := range entries(in.Objects) {
		service := services[e.service.String()]
		port, ok := targetPort(service, e.port)
		if !ok {
			continue
		}
		pods := index.behind(service)
		if len(pods) == 0 {
			continue
		}
		x := Exposure{
			Kind: e.kind, Namespace: e.namespace, Name: e.name, Hosts: e.hosts, Field: e.field,
			Service: e.service.String(), Pods: names(pods), Target: port, Port: strings.TrimSpace(port.Proto.String() + " " + port.String()),
		}
		cell := [2]int{-1, side(&backends, columns, x.Service+" "+x.Port, pods, port)}
		x.LetIn, x.Why = Unknown, e.unknown
		if e.unknown == "" {
			senders := index.selected(e.controller)
			x.Controller = names(senders)
			if len(senders) > 0 {
				cell[0] = side(&controllers, rows, strings.Join(x.Controller, " "), senders)
			} else {
				x.Why = "no pods of " + e.controllerName + " in the input"
			}
		}
		found, cells = append(found, x), append(cells, cell)
	}
	o := in.Cluster.Overview(controllers, backends, reachability.Port{}, in.Family)
	for i, cell := range cells {
		if cell[0] >= 0 {
			found[i].LetIn = letIn(o, cell[0], cell[1])
		}
	}
	return unique(found)
}

// side returns the index of the side of that key, which it adds if there is none.
func side(sides *[]reachability.Side, index map[string]int, key string, members []reachability.Endpoint, ports ...reachability.Port) int {
	i, known := index[key]
	if !known {
		i = len(*sides)
		index[key] = i
		*sides = append(*sides, reachability.Side{Name: key, Members: members, Ports: ports})
	}
	return i
}

func letIn(o *reachability.Overview, row, column int) LetIn {
	every, some := o.Every(row, column), o.Some(row, column)
	if !some.Empty() {
		return Some
	}
	if every.Empty() {
		return None
	}
	return All
}

// unique orders exposures and joins those that differ in their hosts or paths only.
func unique(found []Exposure) []Exposure {
	key := func(e *Exposure) string {
		return strings.Join([]string{e.Service, e.Port, e.Kind, e.Namespace, e.Name, strings.Join(e.Controller, " "), e.Why}, "\x00")
	}
	slices.SortStableFunc(found, func(a, b Exposure) int { return cmp.Compare(key(&a), key(&b)) })
	var all []Exposure
	for _, x := range found {
		if last := len(all) - 1; last < 0 || key(&all[last]) != key(&x) {
			all = append(all, x)
			continue
		}
		joined := &all[len(all)-1]
		joined.Hosts = slices.Compact(slices.Sorted(slices.Values(slices.Concat(joined.Hosts, x.Hosts))))
	}
	return all
}

// targetPort returns the port of pods behind a port of a Service: its name or number. ok is
// false if there is none.
func targetPort(s *corev1.Service, port intstr.IntOrString) (_ reachability.Port, ok bool) {
	if s == nil || len(s.Spec.Selector) == 0 {
		return reachability.Port{}, false
	}
	for _, p := range s.Spec.Ports {
		if port.Type == intstr.String && p.Name != port.StrVal || port.Type == intstr.Int && p.Port != port.IntVal {
			continue
		}
		to, err := reachability.TargetPort(&p)
		return to, err == nil
	}
	return reachability.Port{}, false
}

// podIndex finds pods by their labels.
type podIndex struct {
	cluster *reachability.Cluster
	byLabel map[[2]string][]*corev1.Pod
}

func newPodIndex(in *Input) *podIndex {
	index := &podIndex{in.Cluster, map[[2]string][]*corev1.Pod{}}
	for _, p := range in.Pods {
		for key, value := range p.Labels {
			index.byLabel[[2]string{key, value}] = append(index.byLabel[[2]string{key, value}], p)
		}
	}
	return index
}

// behind returns the pods that a Service selects.
func (x *podIndex) behind(s *corev1.Service) []reachability.Endpoint {
	return x.selected([]podSelector{{s.Namespace, s.Spec.Selector}})
}

// selected returns the pods of the first selector that has some.
func (x *podIndex) selected(selectors []podSelector) []reachability.Endpoint {
	var found []reachability.Endpoint
	for _, s := range selectors {
		for _, p := range x.withLabels(s.labels) {
			if s.namespace != "" && p.Namespace != s.namespace {
				continue
			}
			e, err := x.cluster.Endpoint(p.Namespace + "/" + p.Name)
			if err == nil { // one that has ended has no network
				found = append(found, e)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// withLabels returns the pods with all labels of wanted, which are not empty. The label that
// the fewest pods have excludes most of the others.
func (x *podIndex) withLabels(wanted map[string]string) []*corev1.Pod {
	var fewest []*corev1.Pod
	first := true
	for key, value := range wanted {
		if pods := x.byLabel[[2]string{key, value}]; first || len(pods) < len(fewest) {
			fewest, first = pods, false
		}
	}
	selector := labels.SelectorFromSet(wanted)
	var found []*corev1.Pod
	for _, p := range fewest {
		if selector.Matches(labels.Set(p.Labels)) {
			found = append(found, p)
		}
	}
	return found
}

func names(endpoints []reachability.Endpoint) []string {
	var all []string
	for _, e := range endpoints {
		all = append(all, e.Name)
	}
	slices.Sort(all)
	return all
}
