package cluster

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Lengths of what counts as a subnet. The API does not say which subnets a network plugin uses.
const (
	subnetBits4 = 24
	subnetBits6 = 64
)

// subnetOf identifies the subnets of one address family of a node's pods.
type subnetOf struct {
	node string
	is4  bool
}

// podSubnets records in which subnets pods had addresses in the course of a run. Only Apply adds to
// it. The zero value is empty.
type podSubnets struct {
	seen map[subnetOf]map[netip.Prefix]bool
}

// add records the addresses of a running pod. Those of pods in the network of their node are the
// node's, and not in a subnet of pods.
func (s *podSubnets) add(pod *corev1.Pod) {
	if pod.Spec.HostNetwork {
		return
	}
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			continue // Probe reports it
		}
		of, bits := subnetOf{pod.Spec.NodeName, addr.Is4()}, subnetBits6
		if of.is4 {
			bits = subnetBits4
		}
		if s.seen == nil {
			s.seen = make(map[subnetOf]map[netip.Prefix]bool)
		}
		if s.seen[of] == nil {
			s.seen[of] = make(map[netip.Prefix]bool)
		}
		s.seen[of][netip.PrefixFrom(addr, bits).Masked()] = true
	}
}

// most returns the number of subnets of the node and family with the most of them.
func (s *podSubnets) most() int {
	most := 0
	for _, subnets := range s.seen {
		most = max(most, len(subnets))
	}
	return most
}
