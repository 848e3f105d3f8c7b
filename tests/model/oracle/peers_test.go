package oracle

import (
	"strings"
	"testing"
)

// sources are the senders that try to reach pod x/a in TestPeers.
var sources = []struct{ name, ip string }{
	{"x/b", "10.0.0.2"},
	{"y/b", "10.0.0.3"},
	{"z/b", "10.0.0.4"},
	{"x/six", "fd00::5"},
	{"host", "192.168.0.2"},
	{"out", outside},
	{"out6", outside6},
}

func TestPeers(t *testing.T) {
	for _, test := range []struct{ name, peers, want string }{
		{"NP-8 none", `[]`, "x/b y/b z/b x/six host out out6"},
		{"NP-11 empty peer", `[{}]`, ""},
		{"NP-11 empty peer beside another", `[{}, {podSelector: {}}]`, "x/b x/six"},
		{"NP-12 podSelector", `[{podSelector: {matchLabels: {app: b}}}]`, "x/b"},
		{"NP-12 namespaceSelector", `[{namespaceSelector: {matchLabels: {team: red}}}]`, "y/b"},
		{"NP-12 both in one item", `[{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: none}}}]`, ""},
		{"NP-12 two items", `[{namespaceSelector: {matchLabels: {team: red}}}, {podSelector: {matchLabels: {app: six}}}]`, "y/b x/six"},
		{"NP-13 all namespaces, pods only", `[{namespaceSelector: {}}]`, "x/b y/b z/b x/six"},
		{"NP-13 all pods of the namespace", `[{podSelector: {}}]`, "x/b x/six"},
		{"NP-14 the name label is not made up", `[{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "y"}}}]`, ""},
		{"NP-15 unknown namespace, NotIn", `[{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [red]}]}}]`, "x/b x/six"},
		{"NP-15 unknown namespace, DoesNotExist", `[{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}]`, ""},
		{"NP-15 unknown namespace, empty and podSelector", `[{namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}]`, "x/b y/b z/b"},
		{"NP-16 block and selector", `[{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]`, ""},
		{"NP-17 block", `[{ipBlock: {cidr: 0.0.0.0/0}}]`, "x/b y/b z/b host out"},
		{"NP-18 except", `[{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.2/31, 192.168.0.0/16]}}]`, "z/b out"},
		{"NP-18 excepted here, allowed there", `[{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.2/32]}}, {ipBlock: {cidr: 10.0.0.2/32}}]`, "x/b y/b z/b"},
		{"NP-18 except covers", `[{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/24]}}]`, ""},
		{"NP-18 except elsewhere", `[{ipBlock: {cidr: 10.0.0.0/24, except: [11.0.0.0/24, "fd00::/64"]}}]`, "x/b y/b z/b"},
		{"NP-19 host bits", `[{ipBlock: {cidr: 10.0.0.77/24}}]`, "x/b y/b z/b"},
		{"NP-19 leading zeros", `[{ipBlock: {cidr: 010.0.0.0/24}}]`, "x/b y/b z/b"},
		{"NP-20 mapped", `[{ipBlock: {cidr: "::ffff:10.0.0.0/120"}}]`, "x/b y/b z/b"},
		{"NP-20 mapped except", `[{ipBlock: {cidr: 10.0.0.0/24, except: ["::ffff:10.0.0.2/127"]}}]`, "z/b"},
		{"NP-20 all of IPv6", `[{ipBlock: {cidr: "::/0"}}]`, "x/six out6"},
		{"NP-20 wider than mapped", `[{ipBlock: {cidr: "::ffff:10.0.0.0/64"}}]`, ""},
		{"unreadable block", `[{ipBlock: {cidr: 10.0.0.0}}, {ipBlock: {cidr: ""}}]`, ""},
		{"unreadable except", `[{ipBlock: {cidr: 10.0.0.0/24, except: [nonsense]}}]`, ""},
		{"NP-24 unreadable podSelector", `[{podSelector: {matchLabels: {app: "b!"}}}]`, ""},
		{"NP-24 unreadable NotIn", `[{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: ["b!"]}]}}]`, ""},
		{"NP-24 unreadable namespaceSelector", `[{namespaceSelector: {matchLabels: {"bad key": x}}, podSelector: {}}]`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := world(
				namespace("x", "team=blue"), namespace("y", "team=red"), // z is unknown
				pod("x/a", "10.0.0.1,fd00::1", "app=a"),
				pod("x/b", "10.0.0.2", "app=b"),
				pod("y/b", "10.0.0.3", "app=b", onNode(there)),
				pod("z/b", "10.0.0.4", "app=b"),
				pod("x/six", "fd00::5", "app=six"),
				pod("x/host", "192.168.0.2", "app=b", hostNetwork, onNode(there)),
				policy(t, "x/p", `{podSelector: {matchLabels: {app: a}}, ingress: [{from: `+test.peers+`}]}`),
				policy(t, "x/q", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: `+test.peers+`}]}`),
			)
			var in, out []string
			for _, s := range sources {
				a := "10.0.0.1"
				if strings.Contains(s.ip, ":") {
					a = "fd00::1"
				}
				if allowed(c, tcp(s.ip, a, 80)) {
					in = append(in, s.name)
				}
				if allowed(c, tcp(a, s.ip, 80)) {
					out = append(out, s.name)
				}
			}
			if got := strings.Join(in, " "); got != test.want {
				t.Errorf("from %s admits %q, want %q", test.peers, got, test.want)
			}
			if got := strings.Join(out, " "); got != test.want {
				t.Errorf("to %s admits %q, want %q", test.peers, got, test.want)
			}
		})
	}
}

func TestARuleNeedsPeerAndPort(t *testing.T) { // NP-9
	const a, b, other = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	c := world(
		pod("x/a", a, "app=a"), pod("x/b", b, "app=b"), pod("x/c", other, "app=c"),
		policy(t, "x/p", `{podSelector: {matchLabels: {app: a}}, ingress: [
			{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: 80}]},
			{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 81}]}]}`),
	)
	check(t, c, tcp(b, a, 80), true)
	check(t, c, tcp(b, a, 81), false)
	check(t, c, tcp(other, a, 80), false)
	check(t, c, tcp(other, a, 81), true)
	check(t, c, tcp(outside, a, 80), false)
}
