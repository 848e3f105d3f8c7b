package oracle

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// probes are the packets that TestPorts tries.
var probes = []struct {
	proto packet.Proto
	port  uint16
}{
	{packet.TCP, 80}, {packet.TCP, 81}, {packet.TCP, 53}, {packet.TCP, 0},
	{packet.UDP, 80}, {packet.UDP, 53},
	{packet.SCTP, 80},
	{packet.ICMP, 0}, {packet.ICMPv6, 0}, {136, 0}, {50, 0}, {packet.Unknown, 0},
}

const everything = "TCP:80 TCP:81 TCP:53 TCP:0 UDP:80 UDP:53 SCTP:80 ICMP:0 ICMPv6:0 protocol 136:0 protocol 50:0 unknown:0"

// admitted names the probes that may go from src to dst.
func admitted(c Cluster, src, dst string) string {
	var names []string
	for _, p := range probes {
		if allowed(c, probe(src, dst, p.proto, p.port)) {
			names = append(names, fmt.Sprintf("%v:%d", p.proto, p.port))
		}
	}
	return strings.Join(names, " ")
}

func TestPorts(t *testing.T) {
	for _, test := range []struct{ name, ports, want string }{
		{"NP-8 none", `[]`, everything},
		{"NP-10 empty item", `[{}]`, "TCP:80 TCP:81 TCP:53 TCP:0"},
		{"NP-10 protocol alone", `[{protocol: UDP}]`, "UDP:80 UDP:53"},
		{"NP-10 port alone", `[{port: 80}]`, "TCP:80"},
		{"NP-9 two items", `[{port: 80}, {protocol: UDP, port: 53}]`, "TCP:80 UDP:53"},
		{"NP-42 SCTP", `[{protocol: SCTP, port: 80}]`, "SCTP:80"},
		{"NP-26 range", `[{port: 53, endPort: 80}]`, "TCP:80 TCP:53"},
		{"NP-26 range of one", `[{port: 81, endPort: 81}]`, "TCP:81"},
		{"NP-26 all", `[{port: 1, endPort: 65535}]`, "TCP:80 TCP:81 TCP:53"},
		{"NP-26 backwards", `[{port: 81, endPort: 80}]`, ""},
		{"NP-26 no port", `[{endPort: 80}]`, ""},
		{"NP-26 named", `[{port: web, endPort: 80}]`, ""},
		{"NP-26 out of range", `[{port: 0}, {port: -1}, {port: 65536}, {port: 80, endPort: 65536}, {port: 0, endPort: 80}]`, ""},
		{"NP-26 out of range beside another", `[{port: 0}, {port: 81}]`, "TCP:81"},
		{"unknown protocol", `[{protocol: ICMP}, {protocol: tcp, port: 80}, {protocol: ""}]`, ""},
		{"NP-27 name", `[{port: web}]`, "TCP:80"},
		{"NP-27 name of another protocol", `[{port: dns}]`, "TCP:53"},
		{"NP-28 name on two protocols", `[{port: dns, protocol: UDP}]`, "UDP:53"},
		{"NP-28 name of an init container", `[{port: init}]`, ""},
		{"NP-28 name of a sidecar", `[{port: side}]`, "TCP:81"},
		{"NP-28 name in two containers", `[{port: twice}]`, "TCP:80 TCP:81"},
		{"NP-29 name that no pod declares", `[{port: none}]`, ""},
		{"name of a number out of range", `[{port: zero}]`, ""},
		{"no name", `[{port: ""}]`, ""},
		{"NP-25 number in quotes is a name", `[{port: "80"}]`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			const a, b = "10.0.0.1", "10.0.0.2"
			c := world(
				pod("x/a", a, "app=a", container("web=TCP:80", "dns=UDP:53", "=TCP:81", "twice=TCP:80", "zero=TCP:0"),
					container("dns=TCP:53", "twice=:81", "udp=UDP:80"),
					initContainer("", "init=TCP:80"), initContainer("Always", "side=TCP:81")),
				pod("x/b", b, "app=b"),
				policy(t, "x/in", `{podSelector: {matchLabels: {app: a}}, ingress: [{ports: `+test.ports+`}]}`),
				policy(t, "x/out", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{ports: `+test.ports+`}]}`),
			)
			if got := admitted(c, outside, a); got != test.want {
				t.Errorf("ingress of %s: got %q, want %q", test.ports, got, test.want)
			}
			c.NetworkPolicies = c.NetworkPolicies[1:]
			if got := admitted(c, b, a); got != test.want {
				t.Errorf("egress of %s: got %q, want %q", test.ports, got, test.want)
			}
		})
	}
}

func TestNamedPortsOfEgress(t *testing.T) { // NP-27
	const src, one, two = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	c := world(
		pod("x/src", src, "", container("web=TCP:83")),
		pod("x/one", one, "", container("web=TCP:81"), onNode(there)),
		pod("x/two", two, "", container("web=TCP:82"), onNode(there)),
		policy(t, "x/p", `{policyTypes: [Egress], egress: [{ports: [{port: web}]}]}`),
	)
	check(t, c, tcp(src, one, 81), true)
	check(t, c, tcp(src, one, 82), false)
	check(t, c, tcp(src, two, 82), true)
	check(t, c, tcp(src, two, 83), false)
	check(t, c, tcp(src, outside, 83), false)
}

func TestFeatureGates(t *testing.T) {
	const a = "10.0.0.1"
	for _, test := range []struct {
		endPort, sctp bool
		want          string
	}{
		{true, true, "TCP:80 TCP:53 UDP:53 SCTP:80"},
		{false, true, "UDP:53 SCTP:80"},
		{true, false, "TCP:80 TCP:53 UDP:53"},
		{false, false, "UDP:53"},
	} {
		t.Run(fmt.Sprintf("EndPort=%v SCTP=%v", test.endPort, test.sctp), func(t *testing.T) {
			c := world(pod("x/a", a, ""), policy(t, "x/p",
				`{ingress: [{ports: [{port: 53, endPort: 80}, {protocol: SCTP}, {protocol: UDP, port: 53}]}]}`))
			c.EndPort, c.SCTP = test.endPort, test.sctp
			if got := admitted(c, outside, a); got != test.want {
				t.Errorf("EndPort=%v SCTP=%v: got %q, want %q", test.endPort, test.sctp, got, test.want)
			}
		})
	}
}
