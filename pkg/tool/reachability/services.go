package reachability

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ClusterIPs returns the addresses of a Service that only packets of the cluster are sent to.
func ClusterIPs(s *corev1.Service) []netip.Addr {
	return parsed(append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...))
}

// ServiceAddresses returns the addresses of a Service that nodes translate to those of endpoints,
// before policies see a packet. Those of a load balancer in mode Proxy are not translated.
func ServiceAddresses(s *corev1.Service) []netip.Addr {
	more := slices.Clone(s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeProxy {
			more = append(more, i.IP)
		}
	}
	return append(ClusterIPs(s), parsed(more)...)
}

// Translated returns the ServiceAddresses of services.
func Translated(services []*corev1.Service) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, s := range services {
		for _, addr := range ServiceAddresses(s) {
			all[addr] = true
		}
	}
	return all
}

// parsed returns the texts that are addresses: headless Services have "None".
func parsed(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}
