package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

func TestPodSubnets(t *testing.T) {
	pod := func(node string, ips ...string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	host := pod("one", "10.88.0.11", "fd00:88::11")
	host.Spec.HostNetwork = true
	for _, test := range []struct {
		name string
		pods []*corev1.Pod
		want int
	}{
		{"no pods", nil, 0},
		{"two addresses of a subnet", []*corev1.Pod{pod("one", "10.244.1.2"), pod("one", "10.244.1.3")}, 1},
		{"two families", []*corev1.Pod{pod("one", "10.244.1.2", "fd00:10:244:1::2")}, 1},
		{"a subnet for each node", []*corev1.Pod{pod("one", "10.244.1.2"), pod("two", "10.244.2.2")}, 1},
		{"pods in the network of their node do not count", []*corev1.Pod{pod("one", "10.244.1.2", "fd00:10:244:1::2"), host}, 1},
		{"two subnets of IPv4", []*corev1.Pod{pod("one", "10.244.1.2", "fd00:10:244:1::2"), pod("one", "10.245.1.2", "fd00:10:244:1::3")}, 2},
		{"two subnets of IPv6 on another node", []*corev1.Pod{pod("one", "10.244.1.2"), pod("two", "fd00:10:244:2::2"), pod("two", "fd00:10:244:102::2")}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s podSubnets
			for _, p := range test.pods {
				s.add(p)
			}
			if got := s.most(); got != test.want {
				t.Errorf("most() = %d, want %d", got, test.want)
			}
		})
	}
}

// The pods of a fake cluster have addresses in 10.0.0.0/24.
func TestEnvironmentHasThePodSubnets(t *testing.T) {
	b := newWorld(t).backend(t, Config{})
	if err := b.Apply(t.Context(), netpol.Model{}.State()); err != nil {
		t.Fatal(err)
	}
	environment, err := b.Environment(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if environment.PodSubnets != 1 {
		t.Errorf("PodSubnets = %d, want 1", environment.PodSubnets)
	}
}
