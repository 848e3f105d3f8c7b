package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The node closes its own pods and ranges, and no address of the node itself.
func TestAddressesAtTheNode(t *testing.T) {
	pod := func(node string, host bool, addrs ...string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, HostNetwork: host}}
		for _, a := range addrs {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
		}
		return p
	}
	node := func(name, podCIDR string) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{podCIDR}}}
		n.Name = name
		return n
	}
	addrs, ranges := addressesAt("n",
		[]*corev1.Pod{pod("n", false, "10.244.1.2", "fd00::2"), pod("n", true, "192.0.2.1"), pod("other", false, "10.244.2.2")},
		[]*corev1.Node{node("other", "10.244.2.0/24"), node("n", "10.244.1.0/24")})
	if got := fmt.Sprint(addrs, ranges); got != "[10.244.1.2 fd00::2] [10.244.1.0/24]" {
		t.Errorf("got %s", got)
	}
}
