package clusterstate

import (
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

func group(name, label string, cidrs ...v1beta1.CIDR) *proposed.CIDRGroup {
	return &proposed.CIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"env": label}}, Spec: proposed.CIDRGroupSpec{CIDRs: cidrs}}
}

// A change of a group changes the policies that refer to it with the next snapshot, and no other.
func TestPoliciesFollowTheirGroups(t *testing.T) {
	in := fixture()
	in.Features.CIDRGroups = true
	for name, spec := range map[string]string{
		"x": `{tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {ns: x}}}, egress: [{action: Deny, to: [{cidrGroups: {names: [g]}}]}]}`,
		"y": `{tier: Admin, priority: 2, subject: {namespaces: {matchLabels: {ns: "y"}}}, egress: [{action: Deny, to: [{cidrGroups: {selector: {matchLabels: {env: a}}}}]}]}`,
	} {
		p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		mustRead(spec, &p.Spec)
		in.Policies = append(in.Policies, p)
	}
	in.CIDRGroups = []*proposed.CIDRGroup{group("other", "a")}
	c := newFrom(in)
	for _, step := range []struct {
		name    string
		change  func() bool
		changes bool
		x, y    string // which of 192.0.2.1 and 198.51.100.1 the pods of a namespace reach
		found   []string
	}{
		{"missing", func() bool { return true }, true, "", "12", []string{"x"}},
		{"added", func() bool { return c.Set(group("g", "b", "192.0.2.0/24")) }, true, "2", "12", nil},
		{"the same again", func() bool { return c.Set(group("g", "b", "192.0.2.0/24")) }, false, "2", "12", nil},
		{"labelled", func() bool { return c.Set(group("g", "a", "192.0.2.0/24")) }, true, "2", "2", nil},
		{"other networks", func() bool { return c.Set(group("g", "a", "198.51.100.0/24")) }, true, "1", "1", nil},
		{"a selector without a group", func() bool { return c.Set(group("other", "b")) && c.Set(group("g", "b")) }, true, "12", "", []string{"y"}},
		{"deleted", func() bool { return c.Delete(compile.KindCIDRGroup, "", "g") }, true, "", "", []string{"x", "y"}},
		{"deleted again", func() bool { return c.Delete(compile.KindCIDRGroup, "", "g") }, false, "", "", []string{"x", "y"}},
	} {
		if got := step.change(); got != step.changes {
			t.Errorf("%s: reported %v, want %v", step.name, got, step.changes)
		}

		s := c.Snapshot()

		for pod, want := range map[string]string{"10.0.0.1": step.x, "10.0.1.1": step.y, "10.0.2.1": "12"} {
			if got := reached(s, pod, "192.0.2.1", "198.51.100.1"); got != want {
				t.Errorf("%s: %s reaches %q, want %q", step.name, pod, got, want)
			}
		}
		var found []string
		for _, f := range s.Findings() {
			found = append(found, f.Policy.Name)
		}
		if !slices.Equal(found, step.found) {
			t.Errorf("%s: findings about %v, want %v", step.name, found, step.found)
		}
	}
}

// reached returns the numbers of the addresses, from 1, that the source may send to.
func reached(s *policy.Snapshot, src string, dsts ...string) string {
	var numbers string
	for i, dst := range dsts {
		p := packet.Packet{Proto: packet.TCP, Src: netip.AddrPortFrom(netip.MustParseAddr(src), 40000), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), 80)}
		if s.Evaluate(policy.Query{Packet: p}).Allowed() {
			numbers += string(rune('1' + i))
		}
	}
	return numbers
}

// A policy whose groups have not changed keeps its chains, so that remembered verdicts stay.
func TestOtherGroupsChangeNoChain(t *testing.T) {
	in := fixture()
	in.Features.CIDRGroups = true
	p := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	mustRead(`{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{cidrGroups: {names: [g]}}]}]}`, &p.Spec)
	in.Policies = []compile.Object{p}
	in.CIDRGroups = []*proposed.CIDRGroup{group("g", "a", "192.0.2.0/24")}
	c := newFrom(in)
	addr := netip.MustParseAddr("10.0.0.1")
	before := c.Snapshot().Endpoint(addr).Egress

	c.Set(group("other", "a", "198.51.100.0/24"))

	if got := c.Snapshot().Endpoint(addr).Egress; got != before {
		t.Error("the chain was built again")
	}
}
