package reachability

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
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

// Translated has the addresses that nodes translate to those of endpoints, so that no packet has them
// when policies see it. The zero Translated has none.
type Translated struct {
	addresses map[netip.Addr]bool
	ranges    *bart.Lite // nil for none
}

// NewTranslated returns the ServiceAddresses of services, and all of the ranges that cluster IPs are
// from: what no Service has in these reaches nothing.
func NewTranslated(services []*corev1.Service, ranges []netip.Prefix) Translated {
	t := Translated{addresses: map[netip.Addr]bool{}, ranges: &bart.Lite{}}
	for _, s := range services {
		for _, addr := range ServiceAddresses(s) {
			t.addresses[addr] = true
		}
	}
	for _, r := range ranges {
		t.ranges.Insert(r)
	}
	return t
}

// Has reports whether an address is translated.
func (t *Translated) Has(a netip.Addr) bool {
	return t.addresses[a] || t.ranges != nil && t.ranges.Lookup(a)
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
