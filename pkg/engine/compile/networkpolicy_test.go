package compile_test

import (
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Numbers such as NP-1 refer to docs/semantics.md. The policies are in namespace x.
func TestNetworkPolicy(t *testing.T) {
	for _, tc := range []struct {
		name     string
		policies []string // specs
		probes   string
		findings []string // "field reason"
	}{
		{name: "NP-1 not isolated, all is allowed", probes: `
			allow y/a x/a tcp/80
			allow x/a 192.0.2.7 udp/53
			allow x/a z/a icmp`},
		{name: "NP-1 isolation is of the own namespace and the selected pods", policies: []string{`{podSelector: {matchLabels: {pod: a}}}`}, probes: `
			deny y/b x/a tcp/80
			allow y/b x/b tcp/80
			allow x/b y/a tcp/80`},
		{name: "NP-1 directions are independent", policies: []string{`{podSelector: {}, policyTypes: [Egress]}`}, probes: `
			allow y/a x/a tcp/80
			deny x/a y/a tcp/80`},
		{name: "NP-2 policies are a union", policies: []string{
			`{podSelector: {}}`,
			`{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}`,
			`{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: c}}}]}]}`}, probes: `
			allow x/b x/a tcp/80
			allow x/c x/a tcp/80
			allow x/b x/c tcp/80
			deny x/a x/c tcp/80`},
		{name: "NP-3 both ends must allow", policies: []string{
			`{podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: b}}}]}]}`,
			`{podSelector: {matchLabels: {pod: b}}, ingress: [{from: [{podSelector: {matchLabels: {pod: c}}}]}]}`}, probes: `
			deny x/a x/b tcp/80
			deny x/a x/c tcp/80
			allow x/c x/b tcp/80`},
		{name: "NP-4 no policyTypes is ingress", policies: []string{`{podSelector: {}, egress: []}`}, probes: `
			deny y/a x/a tcp/80
			allow x/a y/a tcp/80`},
		{name: "NP-4 no policyTypes and an egress rule is both", policies: []string{`{podSelector: {}, egress: [{ports: [{port: 80}]}]}`}, probes: `
			deny y/a x/a tcp/80
			allow x/a y/a tcp/80
			deny x/a y/a tcp/81`},
		{name: "NP-5 rules of a direction that is not named are ignored", policies: []string{`{podSelector: {}, policyTypes: [Egress, Egress], ingress: [{ports: [{port: 1}]}]}`}, probes: `
			allow y/a x/a tcp/80
			deny x/a y/a tcp/80`},
		{name: "NP-5 an unknown policy type is reported", policies: []string{`{podSelector: {}, policyTypes: [Ingress, Sideways]}`}, probes: `
			deny y/a x/a tcp/80
			allow x/a y/a tcp/80`,
			findings: []string{"spec.policyTypes[1] FeatureNotSupported"}},
		{name: "NP-6 an absent podSelector is every pod of the namespace", policies: []string{`{}`}, probes: `
			deny y/a x/a tcp/80
			deny y/a x/c tcp/80
			allow x/a y/a tcp/80`},
		{name: "NP-7 no ingress rule denies all", policies: []string{`{podSelector: {}, policyTypes: [Ingress], ingress: []}`}, probes: `
			deny y/a x/a tcp/80
			deny 192.0.2.7 x/a icmp
			deny y/a:6 x/a:6 udp/53`},
		{name: "NP-7 an empty rule allows all", policies: []string{`{podSelector: {}, ingress: [{}]}`}, probes: `
			allow y/a x/a tcp/80
			allow 192.0.2.7 x/a icmp
			allow y/a:6 x/a:6 unknown`},
		{name: "NP-8 no peers is any peer", policies: []string{`{podSelector: {}, ingress: [{from: [], ports: [{port: 80}]}]}`}, probes: `
			allow y/a x/a tcp/80
			allow 192.0.2.7 x/a tcp/80
			deny 192.0.2.7 x/a tcp/81`},
		{name: "NP-9 a rule needs peer and port", policies: []string{`{podSelector: {}, ingress: [
			{from: [{podSelector: {matchLabels: {pod: a}}}, {podSelector: {matchLabels: {pod: b}}}], ports: [{port: 80}, {port: 81}]},
			{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}], ports: [{port: 82}]}]}`}, probes: `
			allow x/a x/c tcp/80
			allow x/b x/c tcp/81
			deny x/a x/c tcp/82
			allow y/a x/c tcp/82
			deny y/a x/c tcp/80`},
		{name: "NP-10 a missing protocol is TCP", policies: []string{`{podSelector: {}, ingress: [{ports: [{port: 80}]}]}`}, probes: `
			allow y/a x/a tcp/80
			deny y/a x/a udp/80
			deny y/a x/a sctp/80`},
		{name: "NP-10 an empty port is all of TCP", policies: []string{`{podSelector: {}, ingress: [{ports: [{}]}]}`}, probes: `
			allow y/a x/a tcp/1
			allow y/a x/a tcp/65535
			deny y/a x/a udp/80
			deny y/a x/a icmp`},
		{name: "NP-10 a protocol alone is all of its ports", policies: []string{`{podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}`}, probes: `
			allow y/a x/a udp/0
			allow y/a x/a udp/65535
			deny y/a x/a tcp/53`},
		{name: "NP-11 an empty peer matches nothing", policies: []string{`{podSelector: {}, ingress: [{from: [{}]}]}`}, probes: `
			deny y/a x/a tcp/80
			deny 192.0.2.7 x/a tcp/80`,
			findings: []string{"spec.ingress[0].from[0] InvalidPeer"}},
		{name: "NP-12 podSelector alone is of the own namespace", policies: []string{`{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}`}, probes: `
			allow x/b x/a tcp/80
			deny y/b x/a tcp/80
			deny z/b x/a tcp/80`},
		{name: "NP-12 namespaceSelector alone is all its pods", policies: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}]}`}, probes: `
			allow z/b x/a tcp/80
			deny y/b x/a tcp/80
			deny x/b x/a tcp/80`},
		{name: "NP-12 both in one item is and", policies: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}, podSelector: {matchLabels: {pod: b}}}]}]}`}, probes: `
			allow z/b x/a tcp/80
			deny z/a x/a tcp/80
			deny x/b x/a tcp/80`},
		{name: "NP-12 two items is or", policies: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}, {podSelector: {matchLabels: {pod: b}}}]}]}`}, probes: `
			allow z/b x/a tcp/80
			allow z/a x/a tcp/80
			allow x/b x/a tcp/80
			deny y/b x/a tcp/80`},
		{name: "NP-13 all namespaces is pods only", policies: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`}, probes: `
			allow z/b x/a tcp/80
			allow x/b x/a tcp/80
			deny 192.0.2.7 x/a tcp/80
			deny 172.18.0.2 x/a tcp/80`},
		{name: "NP-13 podSelector {} is all pods of the own namespace", policies: []string{`{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`}, probes: `
			allow x/b x/a tcp/80
			deny y/b x/a tcp/80
			deny 192.0.2.7 x/a tcp/80`},
		{name: "NP-16 ipBlock excludes selectors", policies: []string{`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}, podSelector: {}}]}]}`}, probes: `
			deny x/b x/a tcp/80
			deny 192.0.2.7 x/a tcp/80`,
			findings: []string{"spec.ingress[0].from[0] InvalidPeer"}},
		{name: "NP-17 ipBlock matches pods, nodes and the world", policies: []string{`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.1.0/24}}, {ipBlock: {cidr: 172.18.0.2/32}}, {ipBlock: {cidr: 192.0.2.0/25}}]}]}`}, probes: `
			allow y/a x/a tcp/80
			deny z/a x/a tcp/80
			allow 172.18.0.2 x/a tcp/80
			allow 192.0.2.7 x/a icmp
			deny 192.0.2.128 x/a tcp/80`},
		{name: "NP-18 except cuts out", policies: []string{`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/16, except: [10.0.1.0/24, 10.0.2.1/32]}}]}]}`}, probes: `
			allow x/a x/b tcp/80
			deny x/a y/a tcp/80
			deny x/a z/a tcp/80
			allow x/a z/b tcp/80`},
		{name: "NP-18 another item allows what an except cuts out", policies: []string{
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.1.0/24, except: [10.0.1.1/32]}}]}]}`,
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.1.1/32}}]}]}`}, probes: `
			allow x/a y/a tcp/80
			allow x/a y/b tcp/80
			deny x/a z/a tcp/80`},
		{name: "NP-18 faulty excepts", policies: []string{`{podSelector: {}, ingress: [
			{from: [{ipBlock: {cidr: 10.0.1.0/24, except: [10.0.2.0/24, "fd00::/64"]}}]},
			{from: [{ipBlock: {cidr: 10.0.2.0/24, except: [10.0.0.0/16]}}]},
			{from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.0/24]}}]},
			{from: [{ipBlock: {cidr: 198.51.100.0/24, except: [nonsense]}}]}]}`}, probes: `
			allow y/a x/a tcp/80
			deny z/a x/a tcp/80
			deny 192.0.2.7 x/a tcp/80
			deny 198.51.100.1 x/a tcp/80`,
			findings: []string{
				"spec.ingress[0].from[0].ipBlock.except[0] InvalidCIDR", "spec.ingress[0].from[0].ipBlock.except[1] InvalidCIDR",
				"spec.ingress[1].from[0].ipBlock.except[0] InvalidCIDR", "spec.ingress[2].from[0].ipBlock.except[0] InvalidCIDR",
				"spec.ingress[3].from[0].ipBlock.except[0] InvalidCIDR"}},
		{name: "NP-19 sloppy CIDRs", policies: []string{`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.1.77/24}}, {ipBlock: {cidr: 192.000.002.000/24}}, {ipBlock: {cidr: "::ffff:198.51.100.0/120"}}]}]}`}, probes: `
			allow y/a x/a tcp/80
			allow 192.0.2.7 x/a tcp/80
			allow 198.51.100.9 x/a tcp/80
			deny 198.51.101.9 x/a tcp/80
			deny z/a x/a tcp/80`},
		{name: "NP-19 a CIDR that cannot be read matches nothing", policies: []string{`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 300.0.0.0/8}}, {ipBlock: {cidr: 192.0.2.7}}, {ipBlock: {cidr: ""}}]}]}`}, probes: `
			deny 192.0.2.7 x/a tcp/80
			deny y/a x/a tcp/80`,
			findings: []string{"spec.ingress[0].from[0].ipBlock.cidr InvalidCIDR", "spec.ingress[0].from[1].ipBlock.cidr InvalidCIDR", "spec.ingress[0].from[2].ipBlock.cidr InvalidCIDR"}},
		{name: "NP-20 families never cross", policies: []string{`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}`, `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: "::/0"}}]}]}`}, probes: `
			allow y/a x/a tcp/80
			deny y/a:6 x/a:6 tcp/80
			deny x/a y/a tcp/80
			allow x/a:6 y/a:6 tcp/80`},
		{name: "NP-24 expressions", policies: []string{`{podSelector: {matchExpressions: [{key: pod, operator: In, values: [a, b]}]}, ingress: [
			{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x, "y"]}]}}], ports: [{port: 1}]},
			{from: [{namespaceSelector: {matchExpressions: [{key: absent, operator: DoesNotExist}]}, podSelector: {matchExpressions: [{key: absent, operator: NotIn, values: [v]}]}}], ports: [{port: 2}]},
			{from: [{podSelector: {matchExpressions: [{key: pod, operator: Exists}, {key: pod, operator: NotIn, values: [b]}]}}], ports: [{port: 3}]},
			{from: [{podSelector: {matchLabels: {pod: ""}}}], ports: [{port: 4}]}]}`}, probes: `
			allow x/a x/c tcp/80
			allow z/a x/a tcp/1
			deny y/a x/a tcp/1
			allow y/a x/a tcp/2
			allow x/c x/a tcp/3
			deny x/b x/a tcp/3
			deny x/b x/a tcp/4`},
		{name: "NP-24 a selector that cannot be read matches nothing", policies: []string{`{podSelector: {}, ingress: [{from: [
			{podSelector: {matchLabels: {pod: "not valid!"}}},
			{namespaceSelector: {matchExpressions: [{key: ns, operator: Near, values: [x]}]}}]}]}`}, probes: `
			deny x/b x/a tcp/80
			deny y/b x/a tcp/80`,
			findings: []string{"spec.ingress[0].from[0].podSelector InvalidSelector", "spec.ingress[0].from[1].namespaceSelector InvalidSelector"}},
		{name: "NP-24 a subject that cannot be read selects nothing", policies: []string{`{podSelector: {matchLabels: {pod: "not valid!"}}}`}, probes: `
			allow x/b x/a tcp/80`,
			findings: []string{"spec.podSelector InvalidSelector"}},
		{name: "NP-26 endPort is inclusive", policies: []string{`{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 82}, {protocol: UDP, port: 53, endPort: 53}]}]}`}, probes: `
			deny y/a x/a tcp/79
			allow y/a x/a tcp/80
			allow y/a x/a tcp/82
			deny y/a x/a tcp/83
			allow y/a x/a udp/53
			deny y/a x/a udp/54`},
		{name: "NP-26 faulty ports match nothing", policies: []string{`{podSelector: {}, ingress: [{ports: [
			{endPort: 90}, {port: http, endPort: 90}, {port: 82, endPort: 81}, {port: 83, endPort: 65536}, {port: 0}, {port: 65536}, {port: "84"}, {port: ""}, {protocol: ICMP}, {protocol: tcp, port: 85}, {port: 86}]}]}`}, probes: `
			deny y/a x/a tcp/80
			deny y/a x/a tcp/82
			deny y/a x/a tcp/83
			deny y/a x/a tcp/84
			deny y/a x/a tcp/85
			allow y/a x/a tcp/86
			deny y/a x/a icmp`,
			findings: []string{
				"spec.ingress[0].ports[0].endPort InvalidPort", "spec.ingress[0].ports[1].endPort InvalidPort",
				"spec.ingress[0].ports[2].endPort InvalidPort", "spec.ingress[0].ports[3].endPort InvalidPort",
				"spec.ingress[0].ports[4].port InvalidPort", "spec.ingress[0].ports[5].port InvalidPort",
				"spec.ingress[0].ports[6].port InvalidPort", "spec.ingress[0].ports[7].port InvalidPort",
				"spec.ingress[0].ports[8].protocol UnsupportedProtocol", "spec.ingress[0].ports[9].protocol UnsupportedProtocol"}},
		{name: "NP-27 a named port is the destination's, by name and protocol", policies: []string{`{podSelector: {}, ingress: [{ports: [{port: http}, {port: dns}]}]}`}, probes: `
			allow y/a x/a tcp/80
			deny y/a x/a tcp/81
			allow y/a x/a tcp/53
			deny y/a x/a udp/53`},
		{name: "NP-27 a named port of egress", policies: []string{`{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: dns, protocol: UDP}]}]}`}, probes: `
			allow x/a y/a udp/53
			deny x/a y/a tcp/53
			allow x/a z/a udp/53
			deny x/a 192.0.2.7 udp/53`},
		{name: "NP-29 numbers need no declaration, unknown names match nothing", policies: []string{`{podSelector: {}, ingress: [{ports: [{port: 9999}, {port: metrics}]}]}`}, probes: `
			allow y/a x/a tcp/9999
			deny y/a x/a tcp/80`},
		{name: "NP-30 a pod reaches itself", policies: []string{`{podSelector: {}, policyTypes: [Ingress, Egress]}`}, probes: `
			allow x/a x/a tcp/80
			allow x/a:6 x/a:6 udp/1
			deny x/a x/b tcp/80`},
		{name: "NP-35 each node evaluates its own pods", policies: []string{`{podSelector: {}, policyTypes: [Ingress, Egress]}`}, probes: `
			allow z/a 192.0.2.7 tcp/80
			deny z/a x/a tcp/80
			allow y/a z/a tcp/80`},
		{name: "NP-40 ICMP and others need a rule without ports", policies: []string{`{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {}}]}]}`, `{podSelector: {matchLabels: {pod: b}}, ingress: [{ports: [{}, {protocol: UDP}, {protocol: SCTP}]}]}`}, probes: `
			allow x/c x/a icmp
			allow x/c:6 x/a:6 icmpv6
			deny y/c x/a icmp
			deny x/c x/b icmp
			deny x/c:6 x/b:6 icmpv6`},
		{name: "NP-42 SCTP is not TCP, and a policy of SCTP isolates", policies: []string{`{podSelector: {}, ingress: [{ports: [{protocol: SCTP, port: 80}]}]}`}, probes: `
			allow y/a x/a sctp/80
			deny y/a x/a sctp/81
			deny y/a x/a tcp/80`},
		{name: "NP-44 NP-45 what is cut off or unknown needs a rule without ports", policies: []string{`{podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{}, {protocol: UDP}]}]}`, `{podSelector: {matchLabels: {pod: b}}, ingress: [{}]}`}, probes: `
			deny y/a x/a unknown
			deny y/a x/a udplite/80
			deny y/a x/a esp
			allow y/a x/b unknown
			allow y/a x/b udplite/80`},
		{name: "NP-46 neither end is ours", policies: []string{`{podSelector: {}, policyTypes: [Ingress, Egress]}`}, probes: `
			allow 192.0.2.7 198.51.100.1 tcp/80
			allow z/a z/b tcp/80`},
		{name: "NP-57 a peer that is not known matches no selector", policies: []string{`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}`}, probes: `
			deny 10.0.2.99 x/a tcp/80`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := fixture()
			for i, spec := range tc.policies {
				in.Policies = append(in.Policies, netpol(t, string(rune('a'+i)), spec))
			}
			s := check(t, in, tc.probes)
			if got := fields(s.Findings()); !slices.Equal(got, tc.findings) {
				t.Errorf("findings %q, want %q", got, tc.findings)
			}
			slices.Reverse(in.Policies) // NP-2: the order is irrelevant
			slices.Reverse(in.Pods)
			slices.Reverse(in.Namespaces)
			check(t, in, tc.probes)
		})
	}
}

func TestFeatureGatesFailClosed(t *testing.T) {
	const spec = `{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 82}, {port: 90}, {protocol: SCTP, port: 80}, {protocol: SCTP}, {port: 91, endPort: 91}]}]}`
	for _, tc := range []struct {
		name     string
		features compile.Features
		probes   string
		findings []string
	}{
		{"all on", compile.AllFeatures(), `
			allow y/a x/a tcp/80
			allow y/a x/a tcp/90
			allow y/a x/a sctp/80`, nil},
		{"EndPort off", compile.Features{SCTP: true}, `
			deny y/a x/a tcp/80
			deny y/a x/a tcp/81
			deny y/a x/a tcp/91
			allow y/a x/a tcp/90
			allow y/a x/a sctp/80`, []string{"spec.ingress[0].ports[0].endPort FeatureNotSupported", "spec.ingress[0].ports[4].endPort FeatureNotSupported"}},
		{"SCTP off", compile.Features{EndPort: true}, `
			allow y/a x/a tcp/81
			deny y/a x/a sctp/80
			deny y/a x/a sctp/1`, []string{"spec.ingress[0].ports[2].protocol FeatureNotSupported", "spec.ingress[0].ports[3].protocol FeatureNotSupported"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := fixture()
			in.Features = tc.features
			in.Policies = []compile.Object{netpol(t, "p", spec)}
			if got := fields(check(t, in, tc.probes).Findings()); !slices.Equal(got, tc.findings) {
				t.Errorf("findings %q, want %q", got, tc.findings)
			}
		})
	}
}

func TestFindingNamesPolicyFieldAndValue(t *testing.T) {
	in := fixture()
	in.Policies = []compile.Object{netpol(t, "ports", `{podSelector: {}, ingress: [{}, {ports: [{port: 82, endPort: 81}]}]}`)}
	got := clusterstate.Compile(in.Input).Findings()
	const want = "NetworkPolicy x/ports: spec.ingress[1].ports[0].endPort: endPort 81 is not in 82-65535; the port matches nothing"
	if len(got) != 1 || got[0].String() != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
