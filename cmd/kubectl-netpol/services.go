package main

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

// services are the Services of a cluster, with what is behind those without a selector.
type services struct {
	list     []*corev1.Service
	backends exposure.Backends
	ranges   []netip.Prefix // of cluster IPs, none if they are not known
	// limit and backendLimit say why some Services, or what is behind some, may be missing.
	limit, backendLimit string

	byName map[string]*corev1.Service // of list, "namespace/name", made on first use
}

// servicesIn returns the Services of manifests.
func servicesIn(objects *clusterfiles.Objects) services {
	return services{list: objects.Services, backends: backendsOf(objects.EndpointSlices, objects.Endpoints), ranges: rangesOf(objects.ServiceCIDRs)}
}

// add adds Services that replace those of the same name.
func (s *services) add(more *services) {
	all := maps.Clone(more.backends)
	for service, backends := range s.backends {
		if len(all[service]) == 0 {
			all[service] = backends
		}
	}
	*s = services{list: replacing(s.list, more.list), backends: all, ranges: slices.Concat(s.ranges, more.ranges), limit: s.limit, backendLimit: s.backendLimit}
}

// translated returns the addresses of all Services, known or not.
func (s *services) translated() reachability.Translated {
	return reachability.NewTranslated(s.list, s.ranges)
}

// free returns the range of Services that an address is from if no Service is known to have it, else
// an invalid one.
func (s *services) free(addr netip.Addr) netip.Prefix {
	for _, r := range s.ranges {
		if r.Contains(addr.Unmap()) && s.at(addr) == nil {
			return r
		}
	}
	return netip.Prefix{}
}

// named returns a Service, nil if it is not known.
func (s *services) named(namespace, name string) *corev1.Service {
	if s.byName == nil {
		s.byName = make(map[string]*corev1.Service, len(s.list))
		for _, service := range s.list {
			s.byName[service.Namespace+"/"+service.Name] = service
		}
	}
	return s.byName[namespace+"/"+name]
}

// at returns the Service that has an address, nil if none is known: packets to it get the
// address of an endpoint before policies see them.
func (s *services) at(address netip.Addr) *corev1.Service {
	for _, service := range s.list {
		if slices.Contains(reachability.ServiceAddresses(service), address.Unmap()) {
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

// rangesOf returns the ranges of ServiceCIDRs that can be read.
func rangesOf(cidrs []*networkingv1.ServiceCIDR) []netip.Prefix {
	var ranges []netip.Prefix
	for _, c := range cidrs {
		for _, text := range c.Spec.CIDRs {
			if r, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, r.Masked())
			}
		}
	}
	return ranges
}

// backendsOf returns the backends of Services, from their EndpointSlices and Endpoints. Endpoints count only
// for Services without EndpointSlices: the control plane copies them into slices.
func backendsOf(slicesOf []*discoveryv1.EndpointSlice, endpoints []*clusterfiles.Endpoints) exposure.Backends {
	all := exposure.Backends{}
	for _, s := range slicesOf {
		service := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		for _, p := range s.Ports {
			if p.Port == nil {
				continue
			}
			b := exposure.Backend{PortName: deref(p.Name), Protocol: cmp.Or(deref(p.Protocol), corev1.ProtocolTCP), Port: *p.Port}
			for _, e := range s.Endpoints {
				if s.AddressType == discoveryv1.AddressTypeFQDN || e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				for _, b.Address = range e.Addresses {
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
					all[service] = append(all[service], exposure.Backend{Address: a.IP, PortName: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: p.Port})
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
