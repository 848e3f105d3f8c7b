package exposure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Kind is a kind of object that the package reads.
type Kind struct {
	Name, Plural string
	Namespaced   bool
	Group        string
	Versions     []string // the preferred one first
}

// GroupVersionKinds returns the kind in all versions that are read.
func (k *Kind) GroupVersionKinds() []schema.GroupVersionKind {
	var all []schema.GroupVersionKind
	for _, v := range k.Versions {
		all = append(all, schema.GroupVersionKind{Group: k.Group, Version: v, Kind: k.Name})
	}
	return all
}

// Kinds are the kinds that are read. The fields that are read are the same in all versions.
var Kinds = []Kind{
	{"Ingress", "ingresses", true, ingressAPI, []string{"v1"}},
	{"IngressClass", "ingressclasses", false, ingressAPI, []string{"v1"}},
	{"GatewayClass", "gatewayclasses", false, gatewayAPI, []string{"v1", "v1beta1"}},
	{"Gateway", "gateways", true, gatewayAPI, []string{"v1", "v1beta1"}},
	{"HTTPRoute", "httproutes", true, gatewayAPI, []string{"v1", "v1beta1"}},
	{"GRPCRoute", "grpcroutes", true, gatewayAPI, []string{"v1", "v1alpha2"}},
	{"TLSRoute", "tlsroutes", true, gatewayAPI, []string{"v1", "v1alpha3", "v1alpha2"}},
	{"TCPRoute", "tcproutes", true, gatewayAPI, []string{"v1", "v1alpha2"}},
	{"UDPRoute", "udproutes", true, gatewayAPI, []string{"v1", "v1alpha2"}},
	{openShiftRoute, "routes", true, "route.openshift.io", []string{"v1"}},
}

// ref names an object in a namespace.
type ref struct{ namespace, name string }

func (r ref) String() string { return r.namespace + "/" + r.name }

const kindService = "Service"

// clients are those from whom the requests of an entry come.
type clients uint8

const (
	fromController clients = iota
	fromOutside
	fromNodes // from outside, and with the address of the node that the packets enter
)

// entry is a backend of an Ingress or a route through one controller, or a port of a Service or of
// a node that is reached from outside.
type entry struct {
	kind, namespace, name string
	hosts                 []string
	field                 string
	service               ref
	port                  intstr.IntOrString
	protocol              corev1.Protocol // of the port, empty for any
	ranges                []string        // of the load balancer
	pods                  []*corev1.Pod   // of a host port: port is theirs, and there is no Service

	clients        clients
	controllerName string
	controller     []podSelector
	unknown        string // why the controller's pods are not known
}

// class are the fields of an IngressClass or a GatewayClass.
type class struct {
	Spec struct {
		Controller     string `json:"controller"`
		ControllerName string `json:"controllerName"`
	} `json:"spec"`
}

// gateway are the fields of a Gateway.
type gateway struct {
	Spec struct {
		GatewayClassName string `json:"gatewayClassName"`
	} `json:"spec"`
}

// route are the fields of a route. References without a kind are to Gateways and Services.
type route struct {
	Spec struct {
		Hostnames  []string    `json:"hostnames"`
		ParentRefs []reference `json:"parentRefs"`
		Rules      []struct {
			BackendRefs []reference `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
}

type reference struct {
	Group     *string `json:"group"`
	Kind      string  `json:"kind"`
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Port      int32   `json:"port"`
}

// to returns what a reference in a namespace names, if it is of that kind, the default one.
func (r *reference) to(kind, group, namespace string) (ref, bool) {
	named := cmp.Or(r.Kind, kind) == kind && (r.Group == nil || *r.Group == group)
	return ref{cmp.Or(r.Namespace, namespace), r.Name}, named
}

// entries returns the backends of all Ingresses and routes.
func entries(objects []*unstructured.Unstructured) []entry {
	c := readClasses(objects)
	var all []entry
	for _, o := range objects {
		switch o.GetKind() {
		case "Ingress":
			all = append(all, c.ingressEntries(o)...)
		case "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute":
			all = append(all, c.routeEntries(o)...)
		case openShiftRoute:
			all = append(all, openShiftEntries(o)...)
		}
	}
	return all
}

// decode decodes the fields of into. An API server would refuse an object for which it fails;
// it exposes nothing.
func decode(o *unstructured.Unstructured, into any) bool {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into) == nil
}

func readClasses(objects []*unstructured.Unstructured) *classes {
	c := &classes{ingress: map[string]string{}, gateway: map[string]string{}, gateways: map[ref]string{}}
	for _, o := range objects {
		var fields class
		switch o.GetKind() {
		case "IngressClass":
			if decode(o, &fields) {
				c.ingress[o.GetName()] = fields.Spec.Controller
			}
			if o.GetAnnotations()[defaultClass] == "true" {
				c.standard = o.GetName()
			}
		case "GatewayClass":
			if decode(o, &fields) {
				c.gateway[o.GetName()] = fields.Spec.ControllerName
			}
		case "Gateway":
			if g := (gateway{}); decode(o, &g) {
				c.gateways[ref{o.GetNamespace(), o.GetName()}] = g.Spec.GatewayClassName
			}
		}
	}
	return c
}

func (c *classes) ingressEntries(o *unstructured.Unstructured) []entry {
	var i networkingv1.Ingress
	if !decode(o, &i) {
		return nil
	}
	class := o.GetAnnotations()[formerClass]
	if i.Spec.IngressClassName != nil {
		class = *i.Spec.IngressClassName
	}
	var all []entry
	add := func(b *networkingv1.IngressBackend, field, host string) {
		if b == nil || b.Service == nil {
			return
		}
		e := newEntry(o, field, ref{o.GetNamespace(), b.Service.Name})
		e.port = intstr.FromInt32(b.Service.Port.Number)
		if b.Service.Port.Name != "" {
			e.port = intstr.FromString(b.Service.Port.Name)
		}
		if host != "" {
			e.hosts = []string{host}
		}
		c.ofIngress(&e, class)
		all = append(all, e)
	}
	add(i.Spec.DefaultBackend, "spec.defaultBackend", "")
	for n, rule := range i.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for m := range rule.HTTP.Paths {
			add(&rule.HTTP.Paths[m].Backend, fmt.Sprintf("spec.rules[%d].http.paths[%d].backend", n, m), rule.Host)
		}
	}
	return all
}

func (c *classes) routeEntries(o *unstructured.Unstructured) []entry {
	var r route
	if !decode(o, &r) {
		return nil
	}
	hosts := slices.Sorted(slices.Values(r.Spec.Hostnames))
	var all []entry
	for _, parent := range r.Spec.ParentRefs {
		gateway, ok := parent.to("Gateway", gatewayAPI, o.GetNamespace())
		if !ok {
			continue // such as the Service of a mesh, which exposes nothing
		}
		for n, rule := range r.Spec.Rules {
			for m := range rule.BackendRefs {
				b := &rule.BackendRefs[m]
				service, ok := b.to(kindService, "", o.GetNamespace())
				if !ok {
					continue
				}
				e := newEntry(o, fmt.Sprintf("spec.rules[%d].backendRefs[%d]", n, m), service)
				e.hosts, e.port, e.protocol = hosts, intstr.FromInt32(b.Port), corev1.ProtocolTCP
				if o.GetKind() == "UDPRoute" {
					e.protocol = corev1.ProtocolUDP
				}
				c.ofGateway(&e, gateway)
				all = append(all, e)
			}
		}
	}
	return all
}

// openShiftRoute is the kind of Routes of OpenShift. Its routers send requests to what Services select,
// at the target port that the Route names.
const openShiftRoute = "Route"

func openShiftEntries(o *unstructured.Unstructured) []entry {
	var r struct {
		Spec struct {
			Host              string      `json:"host"`
			To                reference   `json:"to"`
			AlternateBackends []reference `json:"alternateBackends"`
			Port              struct {
				TargetPort intstr.IntOrString `json:"targetPort"`
			} `json:"port"`
		} `json:"spec"`
	}
	if !decode(o, &r) {
		return nil
	}
	var all []entry
	for i, b := range append([]reference{r.Spec.To}, r.Spec.AlternateBackends...) {
		service, ok := b.to(kindService, "", o.GetNamespace())
		if !ok {
			continue
		}
		e := newEntry(o, "spec.to", service)
		if i > 0 {
			e.field = fmt.Sprintf("spec.alternateBackends[%d]", i-1)
		}
		if r.Spec.Host != "" {
			e.hosts = []string{r.Spec.Host}
		}
		e.port, e.protocol = r.Spec.Port.TargetPort, corev1.ProtocolTCP
		e.controlledBy(openShiftRouter, podsOf(openShiftRouter))
		all = append(all, e)
	}
	return all
}

func newEntry(o *unstructured.Unstructured, field string, service ref) entry {
	return entry{kind: o.GetKind(), namespace: o.GetNamespace(), name: o.GetName(), field: field, service: service}
}

// exposure returns what is known of the exposure by an entry before its pods are looked up.
func (e *entry) exposure() Exposure {
	x := Exposure{
		Kind: e.kind, Namespace: e.namespace, Name: e.name, Hosts: e.hosts, Field: e.field,
		SourceRanges: e.ranges, outside: e.clients != fromController,
	}
	if e.pods == nil {
		x.Service = e.service.String()
	}
	return x
}

// serviceEntries returns the ports of Services that are reached from outside: by ports of nodes, a
// load balancer or external addresses.
func serviceEntries(services []*corev1.Service) []entry {
	var all []entry
	for _, s := range services {
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			hosts := outsideNames(s, p)
			if len(hosts) == 0 {
				continue
			}
			e := entry{
				kind: kindService, namespace: s.Namespace, name: s.Name, service: ref{s.Namespace, s.Name}, hosts: hosts,
				field: fmt.Sprintf("spec.ports[%d]", i), port: intstr.FromInt32(p.Port), protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), clients: fromNodes,
			}
			if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
				e.ranges = SourceRanges(s)
			}
			if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				e.clients = fromOutside
			}
			all = append(all, e)
		}
	}
	return all
}

// outsideNames returns what a port of a Service is known by outside.
func outsideNames(s *corev1.Service, p *corev1.ServicePort) []string {
	var all []string
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		name := "LoadBalancer"
		for _, i := range s.Status.LoadBalancer.Ingress {
			name += " " + cmp.Or(i.IP, i.Hostname)
		}
		all = append(all, name)
	}
	switch {
	case p.NodePort != 0:
		all = append(all, fmt.Sprintf("NodePort %d", p.NodePort))
	case s.Spec.Type == corev1.ServiceTypeNodePort:
		all = append(all, "NodePort")
	}
	for _, ip := range s.Spec.ExternalIPs {
		all = append(all, "external address "+ip)
	}
	return all
}

// SourceRanges returns the blocks from which the load balancer of a Service takes connections, none
// if it takes all. Neither the NodePort nor policies know them.
func SourceRanges(s *corev1.Service) []string {
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return s.Spec.LoadBalancerSourceRanges
	}
	var ranges []string
	for r := range strings.SplitSeq(s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey], ",") {
		if r = strings.TrimSpace(r); r != "" {
			ranges = append(ranges, r)
		}
	}
	return ranges
}
