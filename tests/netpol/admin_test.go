package netpol

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// TestAdminPartsMatchYAML compares every part of an administrator's policy with its YAML,
// in both versions.
func TestAdminPartsMatchYAML(t *testing.T) {
	const all = "subject: {namespaces: {}}"
	for _, c := range []struct {
		name              string
		parts             []AdminPart
		v1beta1, v1alpha1 string // without priority and tier
	}{
		{"nothing", nil, all, all},
		{"subject of namespaces", []AdminPart{On(Namespaces("ns=x"))}, `subject: {namespaces: {matchLabels: {ns: x}}}`, `subject: {namespaces: {matchLabels: {ns: x}}}`},
		{
			"subject of pods", []AdminPart{On(Pods("pod=a"))},
			`subject: {pods: {podSelector: {matchLabels: {pod: a}}}}`, `subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: a}}}}`,
		}, {
			"three actions, in order",
			[]AdminPart{AllowFrom(Namespaces("")), DenyFrom(Pods("pod=a").InNamespaces("ns=y")), PassFrom(Namespaces(""), Pods(""))},
			all + `, ingress: [
				{action: Accept, from: [{namespaces: {}}]},
				{action: Deny, from: [{pods: {namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: a}}}}]},
				{action: Pass, from: [{namespaces: {}}, {pods: {podSelector: {}}}]}]`,
			all + `, ingress: [
				{action: Allow, from: [{namespaces: {}}]},
				{action: Deny, from: [{pods: {namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: a}}}}]},
				{action: Pass, from: [{namespaces: {}}, {pods: {podSelector: {}}}]}]`,
		}, {
			"destinations",
			[]AdminPart{DenyTo(Block("10.0.0.0/8"), Networks("1.0.0.0/8", "::/0"), Nodes("a=b"), Namespaces("")), AllowTo(DomainNames("*.example.com")), PassTo(Pods("pod=a"))},
			all + `, egress: [
				{action: Deny, to: [{networks: [10.0.0.0/8]}, {networks: [1.0.0.0/8, "::/0"]}, {nodes: {matchLabels: {a: b}}}, {namespaces: {}}]},
				{action: Accept, to: [{domainNames: ["*.example.com"]}]},
				{action: Pass, to: [{pods: {podSelector: {matchLabels: {pod: a}}}}]}]`,
			all + `, egress: [
				{action: Deny, to: [{networks: [10.0.0.0/8]}, {networks: [1.0.0.0/8, "::/0"]}, {nodes: {matchLabels: {a: b}}}, {namespaces: {}}]},
				{action: Allow, to: [{domainNames: ["*.example.com"]}]},
				{action: Pass, to: [{pods: {podSelector: {matchLabels: {pod: a}}}}]}]`,
		}, {
			"ports",
			[]AdminPart{DenyTo(Namespaces("")).At(TCP(80), UDP(0), Traffic{Port: 81}, Range("SCTP", 1, 9), Named("", "web"))},
			all + `, egress: [{action: Deny, to: [{namespaces: {}}], protocols: [
				{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 1, end: 65535}}}}, {tcp: {destinationPort: {number: 81}}},
				{sctp: {destinationPort: {range: {start: 1, end: 9}}}}, {destinationNamedPort: web}]}]`,
			all + `, egress: [{action: Deny, to: [{namespaces: {}}], ports: [
				{portNumber: {protocol: TCP, port: 80}}, {portRange: {protocol: UDP, start: 1, end: 65535}}, {portNumber: {protocol: TCP, port: 81}},
				{portRange: {protocol: SCTP, start: 1, end: 9}}, {namedPort: web}]}]`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkEqual(t, NewClusterNetworkPolicy("p", v1beta1.BaselineTier, 7, c.parts...), ClusterNetworkPolicyYAML("p", "{tier: Baseline, priority: 7, "+c.v1beta1+"}"))
			checkEqual(t, NewAdminNetworkPolicy("p", 7, c.parts...), AdminNetworkPolicyYAML("p", "{priority: 7, "+c.v1alpha1+"}"))
			if !strings.Contains(c.v1alpha1, "Pass") {
				checkEqual(t, NewBaselineAdminNetworkPolicy(c.parts...), BaselineAdminNetworkPolicyYAML("default", "{"+c.v1alpha1+"}"))
			}
		})
	}
}

func checkEqual(t *testing.T, a, b Policy) {
	t.Helper()
	got, _ := json.Marshal(a)
	want, _ := json.Marshal(b)
	if string(got) != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestInvalidAdminPartsPanic(t *testing.T) {
	for name, build := range map[string]func(){
		"no peer":                   func() { DenyFrom() },
		"a block as a source":       func() { DenyFrom(Block("10.0.0.0/8")) },
		"an exception":              func() { DenyTo(Block("10.0.0.0/8").Except("10.1.0.0/16")) },
		"a block as the subject":    func() { NewAdminNetworkPolicy("p", 1, On(Block("10.0.0.0/8"))) },
		"a protocol with a name":    func() { NewAdminNetworkPolicy("p", 1, DenyFrom(Pods("")).At(Named("TCP", "web"))) },
		"ICMP":                      func() { NewAdminNetworkPolicy("p", 1, DenyFrom(Pods("")).At(Traffic{Protocol: ICMP})) },
		"Pass in the baseline":      func() { NewBaselineAdminNetworkPolicy(PassFrom(Pods(""))) },
		"domains in the baseline":   func() { NewBaselineAdminNetworkPolicy(AllowTo(DomainNames("a.b"))) },
		"no such field in the YAML": func() { AdminNetworkPolicyYAML("p", "{tier: Admin}") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			build()
		})
	}
}

func TestApplyAndWithdrawAllKinds(t *testing.T) {
	s := &State{}
	names := func() string {
		var names []string
		for _, p := range s.AllPolicies() {
			names = append(names, PolicyName(p))
		}
		return strings.Join(names, " ")
	}
	s.Apply(NewPolicy("x", "p"), NewAdminNetworkPolicy("p", 1), NewClusterNetworkPolicy("p", v1beta1.AdminTier, 1), NewBaselineAdminNetworkPolicy())
	clone := s.Clone()
	s.Apply(NewAdminNetworkPolicy("p", 2), NewBaselineAdminNetworkPolicy(DenyFrom(Pods(""))), NewClusterNetworkPolicy("q", v1beta1.AdminTier, 1))
	if got, want := names(), "x/p AdminNetworkPolicy/p BaselineAdminNetworkPolicy/default ClusterNetworkPolicy/p ClusterNetworkPolicy/q"; got != want {
		t.Errorf("after Apply the policies are %s, want %s", got, want)
	}
	if s.AdminNetworkPolicies[0].Spec.Priority != 2 || clone.AdminNetworkPolicies[0].Spec.Priority != 1 {
		t.Error("a policy was not replaced, or was replaced in the clone too")
	}
	s.Withdraw("AdminNetworkPolicy/p", "ClusterNetworkPolicy/p", "x/p")

	if got, want := names(), "BaselineAdminNetworkPolicy/default ClusterNetworkPolicy/q"; got != want {
		t.Errorf("after Withdraw the policies are %s, want %s", got, want)
	}
	s.Apply(ProposedYAML("q", "{ingress: [{from: [{networks: []}]}]}"))
	if len(s.Proposed) != 1 || len(s.ClusterNetworkPolicies) != 0 {
		t.Errorf("a policy and one of the same name with proposed fields: %v, %v", s.ClusterNetworkPolicies, s.Proposed)
	}
	s.Apply(NewClusterNetworkPolicy("q", v1beta1.AdminTier, 1))
	if len(s.Proposed) != 0 || len(s.ClusterNetworkPolicies) != 1 {
		t.Errorf("and without them again: %v, %v", s.ClusterNetworkPolicies, s.Proposed)
	}
}

func TestPoliciesMustBeAmongNeeds(t *testing.T) {
	scenario := Scenario{Name: "p", Model: small, Steps: []Step{{Change: func(s *State) { s.Apply(NewAdminNetworkPolicy("p", 1)) }}}}
	f := newFake(func(Connection, int) Outcome { return Connected })
	if result := (Runner{Backend: f}).Play(t.Context(), scenario); result.Err == nil || !strings.Contains(result.Err.Error(), string(AdminNetworkPolicies)) {
		t.Errorf("error %v, want one about %s", result.Err, AdminNetworkPolicies)
	}
	scenario.Needs = []Feature{AdminNetworkPolicies}
	if result := (Runner{Backend: f}).Play(t.Context(), scenario); !slices.Equal(result.Unsupported, []string{string(AdminNetworkPolicies)}) {
		t.Errorf("unsupported are %v, want %s", result.Unsupported, AdminNetworkPolicies)
	}
}

func TestExpectationsWithOwn(t *testing.T) {
	state := Model{HostNetwork: true, Pods: []string{"a"}, Namespaces: []string{"x", "y"}}.State() // x/a runs on node-1, y/a on node-2
	direct, service := Traffic{Protocol: "TCP", Port: 80}, Traffic{Protocol: "TCP", Port: 80, Via: Service}
	r := NewReachability(state, []Traffic{direct, service})
	r.ExpectAll(false)
	own := NewReachability(state, []Traffic{direct, service})
	own.WithOwn().For(TCP(80)).ExpectAll(false)
	for _, c := range []struct {
		from, to string
		traffic  Traffic
		r, own   bool // the only connected cells
	}{
		{"x/a", "x/a", direct, true, true},
		{"x/a", "x/a", service, true, false},
		{"x/a", "host/node-1", direct, true, false},
		{"host/node-1", "x/a", direct, true, true},
		{"x/a", "host/node-2", direct, false, false},
		{"host/node-2", "x/a", direct, false, false},
		{"x/a", "y/a", direct, false, false},
	} {
		t.Run(fmt.Sprintf("%s to %s %s", c.from, c.to, c.traffic), func(t *testing.T) {
			if got := r.Table(c.traffic).Get(c.from, c.to); got != c.r {
				t.Errorf("connected %v, want %v", got, c.r)
			}
			if got := own.Table(c.traffic).Get(c.from, c.to); got != c.own {
				t.Errorf("with own: connected %v, want %v", got, c.own)
			}
		})
	}
}
