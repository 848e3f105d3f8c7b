package oracle

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// destinations are the addresses that pod x/a tries to reach in TestAdminPeers.
var destinations = []struct{ name, ip string }{
	{"x/b", "10.0.0.2"},
	{"y/b", "10.0.0.3"},
	{"z/b", "10.0.0.4"},
	{"x/six", "fd00::5"},
	{"own", "192.168.0.1"},
	{"node", "192.168.0.2"},
	{"node6", "fd00:f::2"},
	{"out", outside},
	{"out6", outside6},
	{"link", "169.254.169.254"},
}

// theWorld are the peers that a spec denies after its first rule.
const theWorld = `[{networks: [0.0.0.0/0, "::/0"]}]`

// reached returns the names of the destinations that x/a reaches.
func reached(c Cluster) string {
	names := map[netip.Addr][]string{
		netip.MustParseAddr(outside):    {"www.example.com", "example.org"},
		netip.MustParseAddr(outside6):   {"example.com", "a.b.example.org"},
		netip.MustParseAddr("10.0.0.3"): {"b.y.svc.cluster.local"},
		// CN-36: the owner of example.net has answered with these.
		netip.MustParseAddr("10.0.0.2"):        {"pod.example.net", "10-0-0-2.x.pod.cluster.local"},
		netip.MustParseAddr("192.168.0.1"):     {"own.example.net"},
		netip.MustParseAddr("fd00:f::2"):       {"node.example.net", "h.y.svc.cluster.local"},
		netip.MustParseAddr("169.254.169.254"): {"link.example.net", "link.y.svc.cluster.local"},
	}
	var got []string
	for _, d := range destinations {
		a := "10.0.0.1"
		if strings.Contains(d.ip, ":") {
			a = "fd00::1"
		}
		if Evaluate(c, here, Query{Packet: tcp(a, d.ip, 80), Names: names}).Allowed() {
			got = append(got, d.name)
		}
	}
	return strings.Join(got, " ")
}

// without returns the destinations except the excluded ones.
func without(some string) string {
	var remaining []string
	for _, d := range destinations {
		if !strings.Contains(" "+some+" ", " "+d.name+" ") {
			remaining = append(remaining, d.name)
		}
	}
	return strings.Join(remaining, " ")
}

// TestAdminPeers uses each list of peers in an Allow and a Pass, with all other peers denied, and
// in a Deny. Unreadable peers must not be let through by any of these, and stand for every peer in
// Deny.
func TestAdminPeers(t *testing.T) {
	const unreadable = "unreadable"
	for _, test := range []struct {
		name, peers string
		want        string // who is allowed
		fault       string // "unreadable": Deny and Pass deny every peer
	}{
		{"all namespaces are pods only", `[{namespaces: {}}]`, "x/b y/b z/b x/six", ""},
		{"namespaces", `[{namespaces: {matchLabels: {team: red}}}]`, "y/b", ""},
		{"NP-15 a namespace not known", `[{namespaces: {matchExpressions: [{key: team, operator: NotIn, values: [red]}]}}]`, "x/b x/six", ""},
		{"pods", `[{pods: {podSelector: {matchLabels: {app: b}}}}]`, "x/b y/b z/b", ""},
		{"pods of namespaces", `[{pods: {namespaceSelector: {matchLabels: {team: blue}}, podSelector: {matchLabels: {app: b}}}}]`, "x/b", ""},
		{"CN-11 two peers", `[{namespaces: {matchLabels: {team: red}}}, {pods: {podSelector: {matchLabels: {app: six}}}}]`, "y/b x/six", ""},
		{"CN-10 host-network pods", `[{pods: {podSelector: {matchLabels: {app: host}}}}]`, "", ""},
		{"CN-15 networks, pods and nodes too", `[{networks: [0.0.0.0/0]}]`, "x/b y/b z/b own node out link", ""},
		{"CN-15 two networks", `[{networks: [10.0.0.2/31, "2001:db8::/32"]}]`, "x/b y/b out6", ""},
		{"CN-15 host bits", `[{networks: [10.0.0.77/24]}]`, "x/b y/b z/b", ""},
		{"CN-15 families do not cross", `[{networks: ["::/0"]}]`, "x/six node6 out6", ""},
		{"CN-16 nodes", `[{nodes: {}}]`, "own node node6", ""},
		{"CN-16 nodes by label", `[{nodes: {matchLabels: {rack: two}}}]`, "node node6", ""},
		{"CN-17 exact", `[{domainNames: [example.com]}]`, "out6", unreadable},
		{"CN-17 case and dot", `[{domainNames: [WWW.Example.COM.]}]`, "out", unreadable},
		{"CN-17 below", `[{domainNames: ["*.example.com"]}]`, "out", unreadable},
		{"CN-17 several labels below", `[{domainNames: ["*.example.org"]}]`, "out6", unreadable},
		{"CN-17 not part of a label", `[{domainNames: ["*.ple.com"]}]`, "", unreadable},
		{"CN-17 a pod's name", `[{domainNames: [b.y.svc.cluster.local]}]`, "y/b", unreadable},
		{"CN-36 names of pods, nodes and metadata", `[{domainNames: ["*.example.net", "*.pod.cluster.local"]}]`, "", unreadable},
		{"CN-36 names of Services", `[{domainNames: ["*.svc.cluster.local"]}]`, "y/b node6", unreadable},
		{"CN-36 a name and what it is", `[{domainNames: ["*.example.net"]}, {networks: [10.0.0.2/32]}]`, "x/b", unreadable},
		{"CN-17 names that are none", `[{domainNames: ["*", "*.", "a..com", "", "*.*.com", "www.*"]}]`, "", unreadable},
		{"CN-17 a top level domain", `[{domainNames: ["*.com"]}]`, "out out6", unreadable},
		{"CN-30 no field", `[{}]`, "", unreadable},
		{"CN-30 no field, beside others", `[{namespaces: {}}, {}]`, "", unreadable},
		{"CN-30 two fields", `[{namespaces: {}, networks: [0.0.0.0/0]}]`, "", unreadable},
		{"CN-30 no peer at all", `[]`, "", unreadable},
		{"garbage among networks", `[{networks: [300.0.0.0/8, 10.0.0.2/32, 1.2.3.4]}]`, "x/b", unreadable},
		{"garbage beside another peer", `[{networks: [300.0.0.0/8]}, {namespaces: {matchLabels: {team: red}}}]`, "y/b", unreadable},
		{"NP-24 unreadable namespaces", `[{namespaces: {matchLabels: {team: "!"}}}, {pods: {podSelector: {}}}]`, "x/b y/b z/b x/six", unreadable},
		{"NP-24 unreadable pods", `[{pods: {podSelector: {matchExpressions: [{key: app, operator: NotIn, values: ["!"]}]}}}]`, "", unreadable},
		{"NP-24 unreadable nodes", `[{nodes: {matchExpressions: [{key: rack, operator: NotIn, values: ["!"]}]}}]`, "", unreadable},
	} {
		t.Run(test.name, func(t *testing.T) {
			passed, left := test.want, without(test.want)
			if test.fault == unreadable {
				passed, left = "", ""
			}
			for _, kind := range []struct {
				tier, allow string
				policy      func(action string) any
			}{
				{"ANP", "Allow", func(action string) any { return anp(t, "p", peersSpec("priority: 1", action, test.peers)) }},
				{"Admin CNP", "Accept", func(action string) any { return cnp(t, "p", peersSpec("tier: Admin, priority: 1", action, test.peers)) }},
				{"Baseline CNP", "Accept", func(action string) any {
					return cnp(t, "p", peersSpec("tier: Baseline, priority: 1", action, test.peers))
				}},
			} {
				t.Run(kind.tier, func(t *testing.T) {
					for action, want := range map[string]string{kind.allow: test.want, "Pass": passed, "Deny": left} {
						if got := reached(adminWorld(kind.policy(action))); got != want {
							t.Errorf("%s, %s %s: reached are %q, want %q", kind.tier, action, test.peers, got, want)
						}
					}
				})
			}
		})
	}
}

// peersSpec returns a spec with a rule, followed by a rule that denies theWorld unless the first
// rule denies.
func peersSpec(fields, action, peers string) string {
	rest := `, {action: Deny, to: ` + theWorld + `}`
	if action == "Deny" {
		rest = ""
	}
	return fmt.Sprintf(`{%s, subject: {pods: {podSelector: {matchLabels: {app: a}}}}, egress: [{action: %s, to: %s}%s]}`, fields, action, peers, rest)
}

func adminWorld(policies ...any) Cluster {
	return world(append(policies,
		namespace("x", "team=blue"), namespace("y", "team=red"), // z is unknown
		node(here, "192.168.0.1", "rack=one"), node(there, "192.168.0.2,fd00:f::2", "rack=two"),
		pod("x/a", "10.0.0.1,fd00::1", "app=a", container("own=TCP:80")),
		pod("x/b", "10.0.0.2", "app=b"),
		pod("y/b", "10.0.0.3", "app=b", onNode(there)),
		pod("z/b", "10.0.0.4", "app=b"),
		pod("x/six", "fd00::5", "app=six"),
		pod("x/host", "192.168.0.2", "app=host", hostNetwork, onNode(there)),
	)...)
}

func TestPeersOfIngress(t *testing.T) { // CN-10, CN-33
	rule := func(action, peers string) string {
		return `{priority: 1, subject: {pods: {podSelector: {matchLabels: {app: a}}}}, ingress: [{action: ` + action + `, from: ` + peers + `}]}`
	}
	for _, test := range []struct{ peers, want string }{
		{`[{namespaces: {}}]`, "own node node6 out out6 link"},
		{`[{pods: {podSelector: {matchLabels: {app: b}}}}]`, "x/six own node node6 out out6 link"},
		{`[{}]`, ""},
	} {
		t.Run(test.peers, func(t *testing.T) {
			c := adminWorld(anp(t, "p", rule("Deny", test.peers)))
			var got []string
			for _, d := range destinations {
				a := "10.0.0.1"
				if strings.Contains(d.ip, ":") {
					a = "fd00::1"
				}
				if allowed(c, tcp(d.ip, a, 80)) {
					got = append(got, d.name)
				}
			}
			if s := strings.Join(got, " "); s != test.want {
				t.Errorf("Deny from %s: admitted are %q, want %q", test.peers, s, test.want)
			}
		})
	}
}

func TestPeersThatAreSwitchedOff(t *testing.T) { // CN-31
	for _, test := range []struct {
		peers              string
		nodes, domainNames bool
		allow, deny        string
	}{
		{`[{nodes: {}}]`, true, false, "own node node6", without("own node node6")},
		{`[{nodes: {}}, {namespaces: {}}]`, false, true, "", ""},
		{`[{domainNames: [example.com]}]`, false, true, "out6", ""},
		{`[{domainNames: [example.com]}, {namespaces: {}}]`, true, false, "", ""},
	} {
		t.Run(test.peers, func(t *testing.T) {
			for action, want := range map[string]string{"Accept": test.allow, "Deny": test.deny} {
				c := adminWorld(cnp(t, "p", peersSpec("tier: Admin, priority: 1", action, test.peers)))
				c.NodePeers, c.DomainNames = test.nodes, test.domainNames
				if got := reached(c); got != want {
					t.Errorf("%s %s: reached are %q, want %q", action, test.peers, got, want)
				}
			}
		})
	}
}

// TestAdminPeerAndPort: CN-30, a rule with an unreadable peer denies all protocols and ports,
// whatever its ports are.
func TestAdminPeerAndPort(t *testing.T) {
	c := adminWorld(anp(t, "p", `{priority: 1, subject: {namespaces: {}}, egress: [
		{action: Pass, to: [{}, {namespaces: {}}], ports: [{portNumber: {port: 81}}]}]}`))
	for _, p := range []packet.Packet{tcp("10.0.0.1", outside, 80), probe("10.0.0.1", "10.0.0.2", packet.ICMP, 0)} {
		check(t, c, p, false)
	}
}

// TestNamesThatCount has addresses of each kind of CN-36, for which x/a has learned two names.
func TestNamesThatCount(t *testing.T) {
	for addr, want := range map[string]string{
		outside: "both", outside6: "both", "10.99.0.1": "both", "fd99::1": "both", "100.64.0.1": "both", "64:ff9b::203.0.113.9": "both",
		"10.0.0.2": "service", "10.0.7.7": "service", "192.168.0.1": "service", "fd00:f::2": "service", "64:ff9b::10.0.0.2": "service", "2002:a00:2::1": "service",
		"0.0.0.0": "none", "127.0.0.53": "none", "169.254.1.1": "none", "224.0.0.251": "none", "255.255.255.255": "none",
		"::": "none", "::1": "none", "fe80::a9fe:a9fe": "none", "ff02::1": "none", "fd00:ec2::254": "none", "168.63.129.16": "none",
		"64:ff9b::169.254.169.254": "none", "64:ff9b:1::169.254.169.254": "none", "::169.254.169.254": "none", "::ffff:0:127.0.0.1": "none", "2002:a9fe:a9fe::1": "none",
	} {
		t.Run(addr, func(t *testing.T) {
			names := map[netip.Addr][]string{netip.MustParseAddr(addr): {"x.example.net", "x.y.svc.cluster.local"}}
			reaches := func(domain string) bool {
				c := adminWorld(anp(t, "p", peersSpec("priority: 1", "Allow", `[{domainNames: ["`+domain+`"]}]`)))
				c.Nodes = append(c.Nodes, &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.7.0/24"}}})
				src := "10.0.0.1"
				if strings.Contains(addr, ":") {
					src = "fd00::1"
				}
				return Evaluate(c, here, Query{Packet: tcp(src, addr, 80), Names: names}).Allowed()
			}
			got := "none"
			switch external, service := reaches("x.example.net"), reaches("x.y.svc.cluster.local"); {
			case external && service:
				got = "both"
			case service:
				got = "service"
			case external:
				got = "external"
			}
			if got != want {
				t.Errorf("%s is reached by %s, want %s", addr, got, want)
			}
		})
	}
}
