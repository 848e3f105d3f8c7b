package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

func TestIsolation(t *testing.T) {
	const a, b = "10.0.0.1", "10.0.0.2"
	for _, test := range []struct {
		name            string
		spec            string
		ingress, egress bool // may a receive, may a send
	}{
		{"NP-1 not selected", `{podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress, Egress]}`, true, true},
		{"NP-4 no types, no rules", `{podSelector: {}}`, false, true},
		{"NP-4 no types, egress rules", `{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 9.9.9.9/32}}]}]}`, false, false},
		{"NP-4 no types, empty egress", `{podSelector: {}, egress: []}`, false, true},
		{"NP-5 egress only, ingress rules ignored", `{podSelector: {}, policyTypes: [Egress], ingress: [{from: [{}]}]}`, true, false},
		{"NP-5 ingress only, egress rules ignored", `{podSelector: {}, policyTypes: [Ingress], egress: [{to: [{}]}]}`, false, true},
		{"NP-5 duplicate types", `{podSelector: {}, policyTypes: [Ingress, Ingress]}`, false, true},
		{"NP-5 type of the future", `{podSelector: {}, policyTypes: [Sideways]}`, true, true},
		{"NP-6 absent selector selects all", `{policyTypes: [Ingress, Egress]}`, false, false},
		{"NP-7 empty rules deny", `{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [], egress: []}`, false, false},
		{"NP-7 an empty rule allows", `{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}`, true, true},
		{"NP-8 empty lists allow", `{podSelector: {}, ingress: [{from: [], ports: []}]}`, true, true},
		{"NP-24 unreadable selector selects nothing", `{podSelector: {matchLabels: {app: "not valid!"}}}`, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := world(pod("x/a", a, "app=a"), pod("y/b", b, "app=b"), policy(t, "x/p", test.spec))
			check(t, c, tcp(b, a, 80), test.ingress)
			check(t, c, tcp(outside, a, 80), test.ingress)
			check(t, c, tcp(a, b, 80), test.egress)
			check(t, c, tcp(a, outside, 80), test.egress)
		})
	}
}

func TestPoliciesAreAUnion(t *testing.T) { // NP-2, NP-3
	const a, b = "10.0.0.1", "10.0.0.2"
	pods := []any{pod("x/a", a, "app=a"), pod("x/b", b, "app=b")}
	deny := policy(t, "x/deny", `{policyTypes: [Ingress, Egress]}`)
	receive := policy(t, "x/receive", `{podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 80}]}]}`)
	send := policy(t, "x/send", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{}]}`)

	check(t, world(append(pods, deny)...), tcp(a, b, 80), false)
	check(t, world(append(pods, deny, receive)...), tcp(a, b, 80), false)
	check(t, world(append(pods, deny, send)...), tcp(a, b, 80), false)
	for _, c := range []Cluster{world(append(pods, deny, receive, send)...), world(append(pods, send, receive, deny)...)} {
		check(t, c, tcp(a, b, 80), true)
		check(t, c, tcp(a, b, 81), false)
		check(t, c, tcp(b, a, 80), false)
	}
}

func TestNodeEvaluatesItsOwnPods(t *testing.T) { // NP-35, NP-46
	const local, remote = "10.0.0.1", "10.0.0.2"
	c := world(
		pod("x/local", local, ""),
		pod("x/remote", remote, "", onNode(there)),
		policy(t, "x/deny", `{policyTypes: [Ingress, Egress]}`),
	)
	for _, test := range []struct {
		src, dst        string
		egress, ingress Outcome
	}{
		{local, remote, Denied, NotEnforced},
		{remote, local, NotEnforced, Denied},
		{local, outside, Denied, NotEnforced},
		{outside, local, NotEnforced, Denied},
		{remote, outside, NotEnforced, NotEnforced},
		{outside, outside6, NotEnforced, NotEnforced},
		{local, local, Allowed, Allowed}, // NP-30
	} {
		t.Run(test.src+" to "+test.dst, func(t *testing.T) {
			d := Evaluate(c, here, Query{Packet: tcp(test.src, test.dst, 80)})
			if d.Egress.Outcome != test.egress || d.Ingress.Outcome != test.ingress {
				t.Errorf("%s to %s: got %v, want egress %v, ingress %v", test.src, test.dst, d, test.egress, test.ingress)
			}
		})
	}
}

func TestSelectedAddresses(t *testing.T) {
	c := world(
		pod("x/a", "10.0.0.1,fd00::1", "app=a"),
		pod("x/b", "10.0.0.2", "app=b"),
		pod("x/host", "192.168.0.1", "app=a", hostNetwork),
		pod("x/done", "10.0.0.3", "app=a", phase("Succeeded")),
		pod("x/remote", "10.0.0.4", "app=a", onNode(there)),
		pod("y/a", "10.0.0.5", "app=a"),
		policy(t, "x/p", `{podSelector: {matchLabels: {app: a}}}`),
	)
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	if got := SelectedAddresses(c, here, networkingv1.PolicyTypeIngress); !slices.Equal(got, want) {
		t.Errorf("ingress: got %v, want %v", got, want)
	}
	if got := SelectedAddresses(c, here, networkingv1.PolicyTypeEgress); len(got) > 0 {
		t.Errorf("egress: got %v, want none", got)
	}
}

func TestDecisionSaysWhy(t *testing.T) {
	c := world(pod("x/a", "10.0.0.1", ""), policy(t, "x/p", `{ingress: [{ports: [{port: 80}]}]}`))
	want := "allowed (egress not evaluated: 203.0.113.9 is no pod; ingress allowed: policy x/p, rule 0)"
	if got := fmt.Sprint(Evaluate(c, here, Query{Packet: tcp(outside, "10.0.0.1", 80)})); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
