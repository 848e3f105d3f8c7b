package oracle

import (
	"fmt"
	"strings"
	"testing"
)

func TestAdminFaults(t *testing.T) {
	const all = "subject: {namespaces: {}}"
	inANP := func(rule string) any { return anp(t, "p", "{priority: 1, "+all+", ingress: ["+rule+"]}") }
	outANP := func(rule string) any { return anp(t, "p", "{priority: 1, "+all+", egress: ["+rule+"]}") }
	outCNP := func(rule string) any { return cnp(t, "p", "{tier: Admin, priority: 1, "+all+", egress: ["+rule+"]}") }
	const peer = "to: [{namespaces: {}}]"
	for _, test := range []struct {
		name   string
		policy any
		want   string
	}{
		{"nothing", outCNP(`{action: Pass, to: [{nodes: {}}, {networks: [10.0.0.0/8, "FD00:0::/8"]}], protocols: [{tcp: {destinationPort: {number: 1}}}]}`), ""},
		{"CN-38 host bits", outCNP(`{action: Pass, to: [{nodes: {}}, {networks: [10.1.2.3/8]}]}`), "spec.egress[0].to[1] InvalidCIDR"},
		{"CN-38 of a kind that takes them", outANP(`{action: Pass, to: [{networks: [10.1.2.3/8]}]}`), ""},
		{"CN-38 names", outCNP(`{action: Accept, to: [{domainNames: [a.b, "*.a-_1.b.", A.B]}, {domainNames: [_a.b]}, {domainNames: ["a.[b"]}, {domainNames: [a]}]}`),
			"spec.egress[0].to[1] InvalidPeer, spec.egress[0].to[2] InvalidPeer, spec.egress[0].to[3] InvalidPeer"},
		{"CN-38 names in Baseline", cnp(t, "p", `{tier: Baseline, subject: {namespaces: {}}, egress: [{action: Accept, to: [{networks: [10.0.0.0/8]}, {domainNames: [a.b]}]}]}`), "spec.egress[0].to[1] InvalidPeer"},
		{"a port name that no pod declares", inANP(`{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: none}]}`), ""},
		{"CN-32", banp(t, "other", `{subject: {}}`), "metadata.name FeatureNotSupported, spec.subject InvalidSelector void"},
		{"tier", cnp(t, "p", `{tier: Next, subject: {namespaces: {}}}`), "spec.tier FeatureNotSupported"},
		{"subject", anp(t, "p", `{subject: {}, ingress: [{action: Deny, from: [{}]}]}`), "spec.subject InvalidSelector, spec.ingress[0].from[0] InvalidPeer void"},
		{"subject's selector", anp(t, "p", `{subject: {pods: {podSelector: {matchLabels: {a: "!"}}}}}`), "spec.subject InvalidSelector"},
		{"action", outCNP(`{action: Allow, ` + peer + `}`), "spec.egress[0].action FeatureNotSupported"},
		{"no peer", inANP(`{action: Deny}`), "spec.ingress[0].from InvalidPeer"},
		{"CN-30", inANP(`{action: Allow, from: [{namespaces: {}}, {}]}`), "spec.ingress[0].from[1] InvalidPeer"},
		{"NP-24", outANP(`{action: Deny, to: [{nodes: {matchLabels: {a: "!"}}}]}`), "spec.egress[0].to[0] InvalidSelector"},
		{"CIDR", outANP(`{action: Deny, to: [{networks: [1.2.3.4]}]}`), "spec.egress[0].to[0] InvalidCIDR"},
		{"domain name", outANP(`{action: Allow, to: [{domainNames: [a..b]}]}`), "spec.egress[0].to[0] InvalidPeer"},
		{"CN-17 Deny", outANP(`{action: Deny, to: [{domainNames: [a.b]}]}`), "spec.egress[0].to[0] FeatureNotSupported"},
		{"CN-16 nodes", outANP(`{action: Allow, to: [{nodes: {}}]}`), ""},
		{"CN-30 port", outCNP(`{action: Deny, ` + peer + `, protocols: [{tcp: {}}]}`), "spec.egress[0].protocols[0] InvalidPort"},
		{"backwards", outANP(`{action: Deny, ` + peer + `, ports: [{portRange: {start: 2, end: 1}}]}`), "spec.egress[0].ports[0] InvalidPort"},
		{"range of one", outANP(`{action: Deny, ` + peer + `, ports: [{portRange: {start: 2, end: 2}}]}`), "spec.egress[0].ports[0] InvalidPort"},
		{"protocol", outANP(`{action: Deny, ` + peer + `, ports: [{portNumber: {protocol: ICMP, port: 1}}]}`), "spec.egress[0].ports[0] UnsupportedProtocol"},
		{"CN-14 Allow", outANP(`{action: Allow, to: [{networks: [1.0.0.0/8]}, {namespaces: {}}], ports: [{namedPort: web}]}`), "spec.egress[0].to[0] InvalidPort"},
		{"CN-14 Deny", outANP(`{action: Deny, to: [{networks: [1.0.0.0/8]}, {namespaces: {}}], ports: [{namedPort: web}]}`), "spec.egress[0].ports[0] InvalidPort"},
		{"CN-14 Pass", outANP(`{action: Pass, to: [{nodes: {}}], ports: [{namedPort: web}, {}]}`),
			"spec.egress[0].ports[0] InvalidPort, spec.egress[0].ports[1] InvalidPort"},
		{"CN-14 where everything is denied", outANP(`{action: Deny, to: [{nodes: {}}, {}], ports: [{namedPort: web}]}`),
			"spec.egress[0].to[1] InvalidPeer, spec.egress[0].ports[0] InvalidPort void"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, faults := range AdminFaults(world(test.policy)) {
				for _, f := range faults {
					text := fmt.Sprint(f.Field, " ", f.Reason)
					if f.Void {
						text += " void"
					}
					got = append(got, text)
				}
			}
			if s := strings.Join(got, ", "); s != test.want {
				t.Errorf("got %q, want %q", s, test.want)
			}
		})
	}
}
