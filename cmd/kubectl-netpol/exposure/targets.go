package exposure

import (
	"cmp"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// target is a port of pods or of addresses behind a Service.
type target struct {
	port    reachability.Port
	members []reachability.Endpoint
}

// targets returns what is behind the port of the Service that an entry names. If nothing is known,
// missing says why.
func (f *finder) targets(e *entry) (all []target, missing string) {
	if e.pods != nil {
		return f.atHostPort(e)
	}
	s := f.services[e.service.String()]
	if s == nil {
		return nil, "that Service is not in the input"
	}
	p := portOf(s, e)
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return nil, "it is another name for " + s.Spec.ExternalName
	case p == nil:
		return nil, fmt.Sprintf("it has no port %s", e.port.String())
	case len(s.Spec.Selector) == 0:
		return f.backends(s, p)
	}
	port, err := reachability.TargetPort(p)
	if err != nil {
		return nil, "targetPort: " + err.Error()
	}
	pods := f.selected([]podSelector{{s.Namespace, s.Spec.Selector}})
	if len(pods) == 0 {
		return nil, "it selects no pod of the input (" + labels.SelectorFromSet(s.Spec.Selector).String() + ")"
	}
	return []target{{port, pods}}, ""
}

// portOf returns the port of a Service that an entry names.
func portOf(s *corev1.Service, e *entry) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if e.names(p) && (e.protocol == "" || cmp.Or(p.Protocol, corev1.ProtocolTCP) == e.protocol) {
			return p
		}
	}
	return nil
}

// names reports whether the port of an entry is that of a Service.
func (e *entry) names(p *corev1.ServicePort) bool {
	target := cmp.Or(p.TargetPort, intstr.FromInt32(p.Port))
	switch {
	case e.kind == openShiftRoute && (e.port == intstr.IntOrString{} || e.port == target):
		return true // the first one, or that of the pods
	case e.port.Type == intstr.String:
		return p.Name == e.port.StrVal
	}
	return e.kind != openShiftRoute && p.Port == e.port.IntVal
}

// backends returns what the endpoints of a Service without a selector have behind a port. They
// may have several ports.
func (f *finder) backends(s *corev1.Service, p *corev1.ServicePort) (all []target, missing string) {
	index := map[reachability.Port]int{}
	for _, b := range f.in.Behind.Behind(s, []corev1.ServicePort{*p}) {
		port, err := reachability.ParsePort(fmt.Sprint(b.Port), string(b.Protocol))
		if err != nil {
			return nil, fmt.Sprintf("its endpoints: %v", err)
		}
		member, err := f.at(b.Address)
		if err != nil {
			return nil, fmt.Sprintf("its endpoints: %v", err)
		}
		i, known := index[port]
		if !known {
			i = len(all)
			index[port] = i
			all = append(all, target{port: port})
		}
		all[i].members = append(all[i].members, member)
	}
	if len(all) == 0 {
		return nil, "it has no selector, and no Endpoints or EndpointSlice with that port"
	}
	return all, ""
}

// at returns the pod that has an address, or else the address itself.
func (f *finder) at(address string) (reachability.Endpoint, error) {
	if addr, err := netip.ParseAddr(address); err == nil {
		if p := f.byAddr[addr.Unmap()]; p != nil {
			return f.cluster.Endpoint(p.Namespace + "/" + p.Name)
		}
	}
	return f.cluster.Endpoint(address)
}
