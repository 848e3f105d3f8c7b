// Package exposure finds the pods that Ingresses, routes of the Gateway API, Services and their own
// host ports expose, and whether policies let the clients in: the pods of controllers, or addresses outside. It
// reads the few fields that this takes, and knows the controllers whose pods have well-known
// labels. It is pure, without I/O or clock.
package exposure

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Input is a cluster to evaluate.
type Input struct {
	Cluster  *reachability.Cluster
	Pods     []*corev1.Pod // of Cluster, as Nodes
	Nodes    []*corev1.Node
	Services []*corev1.Service
	Ranges   []netip.Prefix // of cluster IPs, as far as they are known
	Behind   Backends       // of Services without a selector
	// Objects are Ingresses, routes, Gateways and their classes: objects of Kinds, in any order.
	Objects []*unstructured.Unstructured
	Family  reachability.Family
}

// LetIn says which clients reach which of the exposed pods.
type LetIn string

// The answers. Unknown is for controllers whose pods are not known, and where no pods are known.
const (
	Unknown LetIn = "unknown"
	None    LetIn = "none"
	Some    LetIn = "some"
	All     LetIn = "all"
)

// Exposure is a port of pods that an Ingress or a route exposes through one controller, or a
// Service or a host port to addresses outside. Kind and Name of a host port are those of the
// workload.
type Exposure struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Hosts are host names or, of a Service, what it is known by outside: "NodePort 30080".
	Hosts   []string `json:"hosts,omitempty"`
	Service string   `json:"service,omitempty"` // "namespace/name", empty for a host port
	// SourceRanges are the blocks from which a load balancer takes connections, empty for all.
	SourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`
	// Pods are those behind the Service, "namespace/name", or the addresses of its endpoints. There
	// are none if they are not known.
	Pods []string `json:"pods,omitempty"`
	Port string   `json:"port,omitempty"` // of the pods, "TCP 8080"
	// Controller are the pods that send the requests, "namespace/name". Those of a Service or a host
	// port come from outside.
	Controller []string `json:"controller,omitempty"`
	LetIn      LetIn    `json:"letIn"`
	// Nodes says whether packets with the address of another node are let in, as they have it
	// with externalTrafficPolicy Cluster. It is empty if that is not so, or there is no other node.
	Nodes LetIn  `json:"nodes,omitempty"`
	Why   string `json:"why,omitempty"` // why LetIn is unknown

	Field  string            `json:"-"` // of the backend in the object
	Target reachability.Port `json:"-"` // the port as it is

	outside bool
}

// Outside reports whether the clients are addresses outside rather than pods of a controller.
func (e *Exposure) Outside() bool { return e.outside }

// HostPort reports whether it is a host port that exposes the pods.
func (e *Exposure) HostPort() bool { return e.Service == "" }

// By returns what exposes the pods, with the first hosts: "Ingress shop/web (shop.example.com)".
func (e *Exposure) By() string {
	by := fmt.Sprintf("%s %s/%s", e.Kind, e.Namespace, e.Name)
	if len(e.Hosts) > 0 {
		by += " (" + words.Few(e.Hosts, 3, ", ") + ")"
	}
	return printable.Text(by)
}

// Find returns what the objects, the Services and host ports expose, ordered by Service. A backend behind
// which nothing is known has no Pods, and Why says what is missing.
func Find(in *Input) []Exposure {
	all := slices.Concat(entries(in.Objects), serviceEntries(in.Services), hostPortEntries(in.Pods))
	if len(all) == 0 {
		return nil
	}
	f := newFinder(in)
	for _, e := range all {
		targets, missing := f.targets(&e)
		if missing != "" {
			x := e.exposure()
			x.LetIn, x.Why = Unknown, missing
			f.add(x, -1, -1, -1)
		}
		for _, t := range targets {
			f.expose(&e, &t)
		}
	}
	return f.evaluate()
}

// finder collects exposures, with the sides between which each has its connections.
type finder struct {
	*podIndex
	in       *Input
	services map[string]*corev1.Service
	outside  reachability.Side
	nodes    []reachability.Endpoint
	classes  []string // of nodes, as policies tell them apart

	found            []Exposure
	clients, servers sides
	cells            [][3]int // of found: the clients, the nodes among them, the servers; -1 for none
}

// sides are the sides of an Overview, each once.
type sides struct {
	all   []reachability.Side
	index map[string]int
}

func newFinder(in *Input) *finder {
	f := &finder{podIndex: newPodIndex(in), in: in, services: map[string]*corev1.Service{}, outside: outside(in), nodes: nodesOf(in)}
	f.classes = in.Cluster.AddressClasses(f.nodes)
	for _, s := range in.Services {
		f.services[s.Namespace+"/"+s.Name] = s
	}
	return f
}

func (f *finder) add(x Exposure, clients, nodes, servers int) {
	f.found, f.cells = append(f.found, x), append(f.cells, [3]int{clients, nodes, servers})
}

// expose adds what an entry exposes of a target.
func (f *finder) expose(e *entry, t *target) {
	x := e.exposure()
	x.Pods, x.Target, x.Port = names(t.members), t.port, strings.TrimSpace(t.port.Proto.String()+" "+t.port.String())
	servers := f.servers.add(strings.Join(x.Pods, " ")+" "+x.Port, t.members, t.port)
	clients, nodes := -1, -1
	switch {
	case e.clients == fromOutside || e.clients == fromNodes:
		clients = f.clients.add(f.outside.Name, f.outside.Members)
		if e.clients == fromNodes {
			others := f.otherNodes(t.members)
			switch {
			case len(others) > 0:
				nodes = f.clients.add("nodes "+strings.Join(names(others), " "), others)
			case len(f.nodes) == 0:
				x.Nodes = Unknown
			}
		}
	case e.unknown == "":
		senders := f.selected(e.controller)
		x.Controller = names(senders)
		if len(senders) > 0 {
			clients = f.clients.add(strings.Join(x.Controller, " "), senders)
		} else {
			x.Why = "no pods of " + e.controllerName + " in the input"
		}
	default:
		x.Why = e.unknown
	}
	f.add(x, clients, nodes, servers)
}

// evaluate returns the exposures with their answers.
func (f *finder) evaluate() []Exposure {
	o := f.in.Cluster.Overview(f.clients.all, f.servers.all, reachability.Port{}, f.in.Family)
	for i, cell := range f.cells {
		f.found[i].LetIn = Unknown
		if cell[0] >= 0 {
			f.found[i].LetIn = letIn(o, cell[0], cell[2])
		}
		if cell[1] >= 0 {
			f.found[i].Nodes = letIn(o, cell[1], cell[2])
		}
	}
	return unique(f.found)
}

// outside returns the addresses outside, of one family: not all pods may have both.
func outside(in *Input) reachability.Side {
	translated := reachability.NewTranslated(in.Services, in.Ranges)
	for _, family := range []reachability.Family{reachability.IPv4, reachability.IPv6} {
		if in.Family != reachability.FirstCommon && in.Family != family {
			continue
		}
		if side := in.Cluster.Outside(family, translated); len(side.Members) > 0 {
			return side
		}
	}
	return reachability.Side{Name: "outside"}
}

// otherNodes returns nodes that have none of the pods, by their internal addresses: one of each
// set that policies do not tell apart.
func (f *finder) otherNodes(pods []reachability.Endpoint) []reachability.Endpoint {
	has := map[string]bool{}
	for _, p := range pods {
		has[p.Node] = true
	}
	var others []reachability.Endpoint
	known := map[string]bool{}
	for i, n := range f.nodes {
		if class := f.classes[i]; !has[n.Node] && !known[class] {
			known[class] = true
			others = append(others, n)
		}
	}
	return others
}

// nodesOf returns the nodes with an internal address: what is masqueraded has the first one.
func nodesOf(in *Input) []reachability.Endpoint {
	var found []reachability.Endpoint
	for _, n := range in.Nodes {
		for _, a := range n.Status.Addresses {
			if e, err := in.Cluster.Endpoint(a.Address); err == nil && a.Type == corev1.NodeInternalIP && e.Kind == reachability.Node {
				found = append(found, e)
				break
			}
		}
	}
	return found
}

// add returns the index of the side of that key, which it adds if there is none.
func (s *sides) add(key string, members []reachability.Endpoint, ports ...reachability.Port) int {
	if i, known := s.index[key]; known {
		return i
	}
	if s.index == nil {
		s.index = map[string]int{}
	}
	s.index[key] = len(s.all)
	s.all = append(s.all, reachability.Side{Name: key, Members: members, Ports: ports})
	return s.index[key]
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

// podIndex finds pods by their labels.
type podIndex struct {
	cluster *reachability.Cluster
	byLabel map[[2]string][]*corev1.Pod
	byAddr  map[netip.Addr]*corev1.Pod
}

func newPodIndex(in *Input) *podIndex {
	index := &podIndex{in.Cluster, map[[2]string][]*corev1.Pod{}, map[netip.Addr]*corev1.Pod{}}
	for _, p := range in.Pods {
		for _, addr := range compile.Addresses(p) {
			if !p.Spec.HostNetwork {
				index.byAddr[addr] = p
			}
		}
		for key, value := range p.Labels {
			index.byLabel[[2]string{key, value}] = append(index.byLabel[[2]string{key, value}], p)
		}
	}
	return index
}

// selected returns the pods of the first selector that has some.
func (x *podIndex) selected(selectors []podSelector) []reachability.Endpoint {
	var found []reachability.Endpoint
	for _, s := range selectors {
		for _, p := range x.withLabels(s.labels) {
			if s.namespace != "" && p.Namespace != s.namespace {
				continue
			}
			all, _ := x.cluster.Endpoints(p.Namespace + "/" + p.Name) // one that has ended has no network
			found = append(found, all...)
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
