package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-network-policies/pkg/tool/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/tool/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/tool/suggest"
)

// services are the Services of a cluster, with what is behind those without a selector.
type services struct {
	list     []*corev1.Service
	backends map[string][]backend // by "namespace/name"
	// limit and backendLimit say why some Services, or what is behind some, may be missing.
	limit, backendLimit string
}

// backend is an address and a port behind a port of a Service, by its EndpointSlices or its
// Endpoints.
type backend struct {
	address  string
	portName string
	protocol corev1.Protocol
	port     int32
}

// servicesIn returns the Services of manifests.
func servicesIn(objects *clusterfiles.Objects) services {
	return services{list: objects.Services, backends: backendsOf(objects.EndpointSlices, objects.Endpoints)}
}

// add adds Services that replace those of the same name.
func (s *services) add(more *services) {
	s.list = append(slices.DeleteFunc(slices.Clone(s.list), func(old *corev1.Service) bool { return more.named(old.Namespace, old.Name) != nil }), more.list...)
	all := maps.Clone(more.backends)
	for service, backends := range s.backends {
		if len(all[service]) == 0 {
			all[service] = backends
		}
	}
	s.backends = all
}

// named returns a Service, nil if it is not known.
func (s *services) named(namespace, name string) *corev1.Service {
	for _, service := range s.list {
		if service.Namespace == namespace && service.Name == name {
			return service
		}
	}
	return nil
}

// at returns the Service that has an address, nil if none is known: packets to it get the
// address of an endpoint before policies see them.
func (s *services) at(address netip.Addr) *corev1.Service {
	for _, service := range s.list {
		if hasAddress(serviceAddresses(service), address) {
			return service
		}
	}
	return nil
}

// atNodePort returns the Service that has a port of every node, and the index of the Service's
// port, nil if none is known.
func (s *services) atNodePort(proto corev1.Protocol, port uint16) (service *corev1.Service, index int) {
	for _, service := range s.list {
		for i, p := range service.Spec.Ports {
			if p.NodePort != 0 && p.NodePort == int32(port) && cmp.Or(p.Protocol, corev1.ProtocolTCP) == proto {
				return service, i
			}
		}
	}
	return nil, 0
}

// behind returns the backends of some ports of a Service without a selector.
func (s *services) behind(service *corev1.Service, ports []corev1.ServicePort) []backend {
	return slices.DeleteFunc(slices.Clone(s.backends[service.Namespace+"/"+service.Name]), func(b backend) bool {
		return !slices.ContainsFunc(ports, func(p corev1.ServicePort) bool {
			return p.Name == b.portName && cmp.Or(p.Protocol, corev1.ProtocolTCP) == b.protocol
		})
	})
}

// texts returns the backends as "172.18.0.2 at TCP 6443", by Service.
func (s *services) texts() map[string][]string {
	all := map[string][]string{}
	for service, backends := range s.backends {
		for _, b := range backends {
			all[service] = append(all[service], fmt.Sprintf("%s at %s %d", b.address, b.protocol, b.port))
		}
	}
	return all
}

// suggested returns the backends for suggestions, without those that cannot be read.
func (s *services) suggested() []suggest.Behind {
	var all []suggest.Behind
	for _, service := range slices.Sorted(maps.Keys(s.backends)) {
		for _, b := range s.backends[service] {
			addr, addrErr := netip.ParseAddr(b.address)
			port, portErr := reachability.ParsePort(fmt.Sprint(b.port), string(b.protocol))
			if addrErr == nil && portErr == nil {
				all = append(all, suggest.Behind{Service: service, Addr: addr.Unmap(), Port: port})
			}
		}
	}
	return all
}

// hasAddress reports whether one of the texts is an address.
func hasAddress(texts []string, address netip.Addr) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a.Unmap() == address.Unmap()
	})
}

func clusterIPs(s *corev1.Service) []string {
	return append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...)
}

// serviceAddresses returns the addresses that nodes translate to those of endpoints. What a
// load balancer in mode Proxy has, they do not.
func serviceAddresses(s *corev1.Service) []string {
	all := slices.Concat(clusterIPs(s), s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeProxy {
			all = append(all, i.IP)
		}
	}
	return all
}

// backendsOf returns the backends of Services, by "namespace/name". Endpoints count only for Services
// without EndpointSlices: the control plane copies them into slices.
func backendsOf(slicesOf []*discoveryv1.EndpointSlice, endpoints []*clusterfiles.Endpoints) map[string][]backend {
	all := map[string][]backend{}
	for _, s := range slicesOf {
		service := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		for _, p := range s.Ports {
			if p.Port == nil {
				continue
			}
			b := backend{portName: deref(p.Name), protocol: cmp.Or(deref(p.Protocol), corev1.ProtocolTCP), port: *p.Port}
			for _, e := range s.Endpoints {
				if s.AddressType == discoveryv1.AddressTypeFQDN || e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				for _, b.address = range e.Addresses {
					all[service] = append(all[service], b)
				}
			}
		}
	}
	for _, e := range endpoints {
		service := e.Namespace + "/" + e.Name
		if len(all[service]) > 0 {
			continue
		}
		for _, subset := range e.Subsets {
			for _, p := range subset.Ports {
				for _, a := range subset.Addresses {
					all[service] = append(all[service], backend{a.IP, p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port})
				}
			}
		}
	}
	return all
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
