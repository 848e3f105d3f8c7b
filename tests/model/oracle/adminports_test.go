package oracle

import (
	"fmt"
	"strings"
	"testing"
)

// but returns the probes of everything except the excluded ones.
func but(some string) string {
	var remaining []string
	for _, p := range probes {
		if name := fmt.Sprintf("%v:%d", p.proto, p.port); !strings.Contains(" "+some+" ", " "+name+" ") {
			remaining = append(remaining, name)
		}
	}
	return strings.Join(remaining, " ")
}

// hidden are the probes with unreadable ports.
const hidden = " protocol 50:0 unknown:0"

// TestAdminPorts writes each list of ports in both API versions and uses it in an Allow and a Pass,
// with everything else denied, and in a Deny. Unreadable ports must not be let through; in Deny and
// Pass they stand for every port, and Pass denies. A packet with unreadable ports may match any
// rule with ports (NP-44).
func TestAdminPorts(t *testing.T) {
	const unreadable = "unreadable"
	for _, test := range []struct {
		name             string
		ports, protocols string // in v1alpha1 and v1beta1; empty if the version cannot express it
		want             string
		fault            string
	}{
		{"CN-12 none", `null`, `null`, everything, ""},
		{"CN-12 an empty list", `[]`, `[]`, everything, ""},
		{"CN-13 number", `[{portNumber: {protocol: TCP, port: 80}}]`, `[{tcp: {destinationPort: {number: 80}}}]`, "TCP:80", ""},
		{"CN-13 a missing protocol is TCP", `[{portNumber: {port: 80}}, {portRange: {start: 53, end: 54}}]`, "", "TCP:80 TCP:53", ""},
		{"CN-11 two items", `[{portNumber: {protocol: UDP, port: 53}}, {portNumber: {protocol: SCTP, port: 80}}]`,
			`[{udp: {destinationPort: {number: 53}}}, {sctp: {destinationPort: {number: 80}}}]`, "UDP:53 SCTP:80", ""},
		{"CN-13 range", `[{portRange: {protocol: TCP, start: 53, end: 80}}]`, `[{tcp: {destinationPort: {range: {start: 53, end: 80}}}}]`, "TCP:80 TCP:53", ""},
		{"CN-13 range of one", `[{portRange: {start: 81, end: 81}}]`, `[{tcp: {destinationPort: {range: {start: 81, end: 81}}}}]`, "TCP:81", ""},
		{"CN-13 all of TCP", `[{portRange: {start: 1, end: 65535}}]`, `[{tcp: {destinationPort: {range: {start: 1, end: 65535}}}}]`, "TCP:80 TCP:81 TCP:53", ""},
		{"CN-14 name", `[{namedPort: web}]`, `[{destinationNamedPort: web}]`, "TCP:80", ""},
		{"CN-14 name on two protocols", `[{namedPort: dns}]`, `[{destinationNamedPort: dns}]`, "TCP:53 UDP:53", ""},
		{"CN-14 name that no pod declares", `[{namedPort: none}]`, `[{destinationNamedPort: none}]`, "", ""},
		{"range backwards", `[{portRange: {start: 81, end: 80}}]`, `[{tcp: {destinationPort: {range: {start: 81, end: 80}}}}]`, "", unreadable},
		{"one of two unreadable", `[{portRange: {start: 81, end: 80}}, {portNumber: {port: 53}}]`,
			`[{tcp: {}}, {tcp: {destinationPort: {number: 53}}}]`, "TCP:53", unreadable},
		{"numbers that no port has", `[{portNumber: {port: 0}}, {portNumber: {port: 65616}}, {portRange: {start: 0, end: 80}}, {portRange: {start: 80, end: 65536}}]`,
			`[{tcp: {destinationPort: {number: -1}}}, {tcp: {destinationPort: {number: 65616}}}]`, "", unreadable},
		{"protocols of the future", `[{portNumber: {protocol: ICMP, port: 80}}]`, "", "", unreadable},
		{"protocols are capitals", `[{portRange: {protocol: tcp, start: 1, end: 100}}]`, "", "", unreadable},
		{"a name that no port has", `[{namedPort: "80"}]`, `[{destinationNamedPort: "80"}]`, "", unreadable},
		{"an empty name", `[{namedPort: ""}]`, `[{destinationNamedPort: ""}]`, "", unreadable},
		{"CN-30 no field", `[{}]`, `[{}]`, "", unreadable},
		{"CN-30 no field below", "", `[{tcp: {}}]`, "", unreadable},
		{"CN-30 no field further below", "", `[{udp: {destinationPort: {}}}]`, "", unreadable},
		{"two fields", `[{portNumber: {port: 80}, namedPort: web}]`, `[{tcp: {destinationPort: {number: 80}}, destinationNamedPort: web}]`, "", unreadable},
		{"two fields below", "", `[{tcp: {destinationPort: {number: 80, range: {start: 80, end: 81}}}}]`, "", unreadable},
	} {
		t.Run(test.name, func(t *testing.T) {
			passed, left := test.want, but(test.want)
			if test.want != "" {
				left = strings.ReplaceAll(left, hidden, "")
			}
			if test.fault == unreadable {
				passed, left = "", ""
			}
			for action, want := range map[string]string{"Allow": test.want, "Pass": passed, "Deny": left} {
				if test.ports != "" {
					spec := portsSpec("priority: 1", action, "ports: "+test.ports)
					comparePorts(t, "ANP: "+spec, portsWorld(anp(t, "p", spec)), want)
				}
				if test.protocols != "" {
					word := strings.Replace(action, "Allow", "Accept", 1)
					spec := portsSpec("tier: Admin, priority: 1", word, "protocols: "+test.protocols)
					comparePorts(t, "CNP: "+spec, portsWorld(cnp(t, "p", spec)), want)
				}
			}
		})
	}
}

// portsSpec returns a spec with an ingress rule, followed by a rule that denies the rest unless the
// first rule denies.
func portsSpec(fields, action, ports string) string {
	rest := `, {action: Deny, from: [{namespaces: {}}]}`
	if action == "Deny" {
		rest = ""
	}
	return fmt.Sprintf(`{%s, subject: {pods: {podSelector: {matchLabels: {app: a}}}}, ingress: [{action: %s, from: [{pods: {podSelector: {matchLabels: {app: b}}}}], %s}%s]}`,
		fields, action, ports, rest)
}

func portsWorld(p any) Cluster {
	return world(p,
		pod("x/a", "10.0.0.1", "app=a", container("web=TCP:80", "dns=UDP:53"), container("dns=TCP:53"), initContainer("", "none=TCP:81")),
		pod("x/b", "10.0.0.2", "app=b"), pod("x/c", "10.0.0.3", "app=c"))
}

// comparePorts compares what b may send to a. According to the table of the status section, an
// unreadable port denies only the peers of its rule.
func comparePorts(t *testing.T, spec string, c Cluster, want string) {
	t.Helper()
	if got := admitted(c, "10.0.0.2", "10.0.0.1"); got != want {
		t.Errorf("%s: admitted is %q, want %q", spec, got, want)
	}
	if strings.Contains(spec, "action: Deny, from: [{namespaces") {
		return
	}
	if got := admitted(c, "10.0.0.3", "10.0.0.1"); got != everything {
		t.Errorf("%s: of another peer, admitted is %q", spec, got)
	}
}

// TestNamedPortsOfAdministrators: CN-14, named ports are resolved on each pod and never on
// addresses. With peers that are addresses, a rule that denies or passes denies every port.
func TestNamedPortsOfAdministrators(t *testing.T) {
	const src, one, two = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	pods := []any{
		node(there, one, ""), // an address that is no pod's
		pod("x/src", src, "app=src", container("web=TCP:83")),
		pod("x/one", one, "", container("web=TCP:81"), onNode(there)),
		pod("x/two", two, "", container("web=TCP:82"), onNode(there)),
	}
	spec := func(action, peers string) string {
		return `{tier: Admin, priority: 1, subject: {pods: {podSelector: {matchLabels: {app: src}}}}, egress: [{action: ` + action + `, to: ` + peers + `, protocols: [{destinationNamedPort: web}]}]}`
	}
	c := world(append(pods, cnp(t, "p", spec("Deny", `[{namespaces: {}}]`)))...)
	check(t, c, tcp(src, one, 81), false)
	check(t, c, tcp(src, one, 82), true)
	check(t, c, tcp(src, two, 82), false)
	check(t, c, tcp(src, two, 83), true)
	check(t, c, tcp(src, outside, 83), true)

	closed := policy(t, "x/closed", `{policyTypes: [Egress]}`)
	for _, peers := range []string{`[{networks: [10.0.0.0/24]}]`, `[{nodes: {}}]`} {
		check(t, world(append(pods, closed, cnp(t, "p", spec("Accept", peers)))...), tcp(src, one, 81), false)
		for _, action := range []string{"Deny", "Pass"} {
			c := world(append(pods, cnp(t, "p", spec(action, peers)))...)
			check(t, c, tcp(src, one, 81), false)
			check(t, c, tcp(src, one, 99), false)
			check(t, c, tcp(src, outside, 81), true)
		}
	}
}

func TestSCTPSwitchedOff(t *testing.T) {
	for _, action := range []string{"Allow", "Pass", "Deny"} {
		spec := portsSpec("priority: 1", action, "ports: [{portNumber: {protocol: SCTP, port: 80}}]")
		c := portsWorld(anp(t, "p", spec))
		c.SCTP, c.EndPort = false, false
		comparePorts(t, spec, c, "")
	}
	spec := portsSpec("priority: 1", "Allow", "ports: [{portRange: {start: 53, end: 80}}]") // EndPort does not apply to it
	c := portsWorld(anp(t, "p", spec))
	c.EndPort = false
	comparePorts(t, spec, c, "TCP:80 TCP:53")
}
