package reachability

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

func pod(name, node string, ips ...string) *corev1.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 8080}, {Name: "http", ContainerPort: 9090}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func modified(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(p)
	return p
}

func onHost(p *corev1.Pod) { p.Spec.HostNetwork = true }

// cluster has one pod of every kind.
func cluster() *Cluster {
	return New(clusterstate.Input{
		Features: compile.AllFeatures(),
		Nodes: []*corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}}},
		}},
		Pods: []*corev1.Pod{
			pod("x/web-7d4b9-abcde", "n1", "10.0.0.1"),
			pod("x/both", "n1", "10.0.0.2", "fd00::2"),
			pod("x/six", "n1", "fd00::3"),
			pod("x/pending", ""),
			modified(pod("x/done", "n1", "10.0.0.9"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			modified(pod("x/late", "n1", "10.0.0.1"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }),
			modified(pod("x/host", "n2", "192.168.0.2"), onHost),
		},
	})
}

func TestSidesAreNamed(t *testing.T) {
	c := cluster()
	for name, want := range map[string]struct {
		kind Kind
		node string
	}{
		"x/both":          {Pod, "n1"},
		"x/host":          {HostNetworkPod, "n2"},
		"10.0.0.2":        {Pod, "n1"},
		"::ffff:10.0.0.2": {Pod, "n1"},
		"192.168.0.1":     {Node, "n1"},
		"192.168.0.2":     {Node, "n2"},
		"203.0.113.9":     {External, ""},
		"10.0.0.9":        {External, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := c.Endpoint(name)
			if err != nil || s.Kind != want.kind || s.Node != want.node || s.Name != name {
				t.Errorf("got %+v, %v, want %+v", s, err, want)
			}
		})
	}
}

// A host-network pod represents its node's address if it has that address in all clusters.
func TestAddressesOfNodesThatNoPodStandsFor(t *testing.T) {
	host := func(name, ip string) *corev1.Pod { return modified(pod(name, "n1", ip), onHost) }
	cluster := func(pods ...*corev1.Pod) *Cluster {
		return New(clusterstate.Input{
			Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Address: "192.168.0.1"}, {Address: "203.0.113.1"}, {Address: "2001:db8::1"}, {Address: "fe80::1%eth0"}, {Address: "n1.example"},
			}}}},
			Pods: append(pods, pod("x/a", "n1", "10.0.0.1")),
		})
	}
	one := cluster(host("x/host", "192.168.0.1"))
	for name, tc := range map[string]struct {
		clusters []*Cluster
		want     string
	}{
		"no pod":                     {[]*Cluster{cluster()}, "192.168.0.1 203.0.113.1"},
		"a pod":                      {[]*Cluster{one}, "203.0.113.1"},
		"the pod of both":            {[]*Cluster{one, cluster(host("x/host", "192.168.0.1"))}, "203.0.113.1"},
		"the pod of one":             {[]*Cluster{one, cluster()}, "192.168.0.1 203.0.113.1"},
		"a pod each":                 {[]*Cluster{one, cluster(host("x/other", "192.168.0.1"))}, "192.168.0.1 203.0.113.1"},
		"a pod that has moved":       {[]*Cluster{one, cluster(host("x/host", "192.168.0.7"))}, "192.168.0.1 192.168.0.7 203.0.113.1"},
		"pods of the other family":   {[]*Cluster{cluster(pod("x/six", "n1", "fd00::1"))}, "192.168.0.1 203.0.113.1 2001:db8::1"},
		"a dual-stack pod of a node": {[]*Cluster{cluster(modified(pod("x/host", "n1", "192.168.0.1", "2001:db8::1"), onHost))}, "203.0.113.1 2001:db8::1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(NodeAddresses(tc.clusters...), " "); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestMissingEndpointsHaveAReason(t *testing.T) {
	c := cluster()
	for name, want := range map[string]string{
		"x/pending":  "pod x/pending has no address yet (status.podIPs is empty), and agents evaluate by address",
		"x/done":     "pod x/done has ended (status.phase is Succeeded) and has no network",
		"x/late":     "pod x/late does not own 10.0.0.1 (status.podIPs): it is that of pod x/web-7d4b9-abcde",
		"y/both":     `no pod "y/both"; near it: x/both`,
		"x/bth":      `no pod "x/bth"; near it: x/both`,
		"x/web":      `no pod "x/web"; near it: x/web-7d4b9-abcde`,
		"y/nowhere!": `no pod "y/nowhere!": namespace y has no pods`,
		"x/nowhere!": `no pod "x/nowhere!"; namespace x has both, done, host, late, pending, and 2 more`,
		"both":       `"both" is neither an address nor namespace/pod`,
		"fe80::1%e0": `"fe80::1%e0": an address with a zone is valid on one link only`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.Endpoint(name); err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
	if got := c.LeftOut(IPv4); len(got) != 4 || got[3].Error() != "x/six has no IPv4 address" {
		t.Errorf("LeftOut returns %v", got)
	}
	if got := c.Pods(FirstCommon, "y"); len(got) != 0 {
		t.Errorf("pods of a namespace without any: %v", got)
	}
}

func TestPortsAreRead(t *testing.T) {
	for _, tc := range []struct{ port, protocol, want, err string }{
		{"80", "TCP", "80", ""},
		{"http", "udp", "http", ""},
		{"", "icmp", "", ""},
		{"0", "TCP", "", `port "0": must be in 1-65535`},
		{"-1", "TCP", "", `port "-1": must be in 1-65535`},
		{"65536", "TCP", "", `port "65536": must be in 1-65535`},
		{"80", "ICMP", "", `port "80": ICMP has no ports`},
		{"80", "DCCP", "", `protocol "DCCP": must be TCP, UDP, SCTP or ICMP`},
		{"no_name", "TCP", "", `port "no_name": neither a number nor the name of a port`},
		{"", "TCP", "", "port is missing: a number or the name of a container's port"},
	} {
		t.Run(tc.port+" "+tc.protocol, func(t *testing.T) {
			p, err := ParsePort(tc.port, tc.protocol)
			if err == nil && tc.err != "" || err != nil && err.Error() != tc.err || p.String() != tc.want {
				t.Errorf("%s %s: got %v, %v", tc.port, tc.protocol, p, err)
			}
		})
	}
}

func TestWhatIsAskedOfTheAgents(t *testing.T) {
	c := cluster()
	for _, tc := range []struct {
		src, dst, port, protocol string
		family                   Family
		want                     Cause
		packet                   string
	}{
		{"x/both", "x/web-7d4b9-abcde", "http", "TCP", FirstCommon, ByPolicy, "TCP 10.0.0.2:40000 -> 10.0.0.1:8080"},
		{"x/both", "x/six", "dns", "UDP", FirstCommon, ByPolicy, "UDP [fd00::2]:40000 -> [fd00::3]:53"},
		{"x/both", "x/six", "", "ICMP", FirstCommon, ByPolicy, "ICMPv6 fd00::2 -> fd00::3"},
		{"x/both", "x/web-7d4b9-abcde", "http", "UDP", FirstCommon, PortNotDeclared, ""},
		{"x/both", "203.0.113.9", "http", "TCP", FirstCommon, PortNotDeclared, ""},
		{"x/both", "x/web-7d4b9-abcde", "80", "TCP", IPv6, NoCommonFamily, ""},
		{"x/six", "203.0.113.9", "80", "TCP", FirstCommon, NoCommonFamily, ""},
		{"x/both", "x/both", "80", "TCP", FirstCommon, Itself, "TCP 10.0.0.2:40000 -> 10.0.0.2:80"},
		{"x/both", "10.0.0.2", "80", "TCP", FirstCommon, Itself, "TCP 10.0.0.2:40000 -> 10.0.0.2:80"},
		{"x/both", "192.168.0.1", "80", "TCP", FirstCommon, ToOwnNode, "TCP 10.0.0.2:40000 -> 192.168.0.1:80"},
		{"192.168.0.1", "x/both", "80", "TCP", FirstCommon, FromNode, "TCP 192.168.0.1:40000 -> 10.0.0.2:80"},
		{"x/host", "x/both", "80", "TCP", FirstCommon, ByPolicy, "TCP 192.168.0.2:40000 -> 10.0.0.2:80"},
		{"x/host", "192.168.0.2", "80", "TCP", FirstCommon, FromNode, "TCP 192.168.0.2:40000 -> 192.168.0.2:80"},
		{"x/both", "x/host", "http", "TCP", FirstCommon, ByPolicy, "TCP 10.0.0.2:40000 -> 192.168.0.2:8080"},
	} {
		t.Run(fmt.Sprintf("%s to %s, port %s/%s %s", tc.src, tc.dst, tc.port, tc.protocol, tc.family), func(t *testing.T) {
			src, err1 := c.Endpoint(tc.src)
			dst, err2 := c.Endpoint(tc.dst)
			port, err3 := ParsePort(tc.port, tc.protocol)
			if err1 != nil || err2 != nil || err3 != nil {
				t.Fatal(err1, err2, err3)
			}
			a := c.Evaluate(&src, &dst, port, tc.family)
			got := ""
			if a.Query.Packet.Src.IsValid() {
				got = a.Query.Packet.String()
			}

			if a.Cause != tc.want || got != tc.packet || a.Allowed != (tc.want != NoCommonFamily && tc.want != PortNotDeclared) {
				t.Errorf("%s -> %s %s: got %v %q", tc.src, tc.dst, tc.port, a.Cause, got)
			}
		})
	}
}
