package oracle

import (
	"fmt"
	"strings"
	"testing"
)

func TestFaults(t *testing.T) {
	for _, test := range []struct{ name, spec, want string }{
		{"nothing", `{}`, ""},
		{"NP-19 NP-20 old notations", `{ingress: [{from: [{ipBlock: {cidr: 010.1.2.3/8, except: ["::ffff:10.1.0.0/112"]}}]}]}`, ""},
		{"NP-29 name that no pod declares", `{ingress: [{ports: [{port: none}]}]}`, ""},
		{"NP-26 range of one", `{ingress: [{ports: [{port: 80, endPort: 80}]}]}`, ""},
		{"NP-24 subject", `{podSelector: {matchLabels: {a: "!"}}}`, "spec.podSelector InvalidSelector"},
		{"NP-24 peer", `{ingress: [{}, {from: [{podSelector: {matchLabels: {a: "!"}}}]}]}`, "spec.ingress[1].from[0] InvalidSelector"},
		{"NP-5 type of the future", `{policyTypes: [Ingress, Sideways]}`, "spec.policyTypes[1] FeatureNotSupported"},
		{"NP-11", `{egress: [{to: [{}]}]}`, "spec.egress[0].to[0] InvalidPeer"},
		{"NP-16", `{egress: [{to: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]}`, "spec.egress[0].to[0] InvalidPeer"},
		{"no mask", `{egress: [{to: [{ipBlock: {cidr: 10.0.0.0}}]}]}`, "spec.egress[0].to[0] InvalidCIDR"},
		{"NP-18 except equal", `{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]}`, "spec.egress[0].to[0] InvalidCIDR"},
		{"NP-18 except wider", `{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [0.0.0.0/0]}}]}]}`, "spec.egress[0].to[0] InvalidCIDR"},
		{"NP-18 except elsewhere", `{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}`, "spec.egress[0].to[0] InvalidCIDR"},
		{"NP-18 except of the other family", `{egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: ["::/1"]}}]}]}`, "spec.egress[0].to[0] InvalidCIDR"},
		{"NP-26 backwards", `{ingress: [{ports: [{port: 2, endPort: 1}]}]}`, "spec.ingress[0].ports[0] InvalidPort"},
		{"no port name", `{ingress: [{ports: [{port: "80"}]}]}`, "spec.ingress[0].ports[0] InvalidPort"},
		{"protocol", `{ingress: [{ports: [{protocol: ICMP}]}]}`, "spec.ingress[0].ports[0] UnsupportedProtocol"},
		{"SCTP off", `{ingress: [{ports: [{protocol: SCTP}]}]}`, "spec.ingress[0].ports[0] FeatureNotSupported"},
		{"NP-5 ignored rules", `{policyTypes: [Egress], ingress: [{from: [{}]}]}`, "spec.ingress[0].from[0] InvalidPeer void"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := world()
			c.SCTP = false
			var got []string
			for _, f := range Faults(c, policy(t, "x/p", test.spec)) {
				text := fmt.Sprint(f.Field, " ", f.Reason)
				if f.Void {
					text += " void"
				}
				got = append(got, text)
			}
			if s := strings.Join(got, ", "); s != test.want {
				t.Errorf("%s: got %q, want %q", test.spec, s, test.want)
			}
		})
	}
}
