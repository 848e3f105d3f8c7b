package policy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// ChangedSince returns all if a change may affect decisions about any address, and otherwise only
// the addresses whose endpoints changed.
func TestChangedSince(t *testing.T) {
	addr := netip.MustParseAddr
	web, db, host := &Endpoint{}, &Endpoint{}, &Host{}
	model := func(edit func(*Model)) Model {
		m := Model{
			Endpoints: NewEndpoints(map[netip.Addr]*Endpoint{addr("10.0.0.1"): web, addr("fd00::1"): web, addr("10.0.0.2"): db}),
			Unknown:   Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
			Hosts:     map[netip.Addr]*Host{addr("192.0.2.1"): host},
		}
		edit(&m)
		return m
	}
	set := func(m *Model, e *Endpoint, addrs ...string) {
		edit := m.Endpoints.Edit()
		for _, a := range addrs {
			edit.Set(addr(a), e)
		}
		m.Endpoints = edit.Done()
	}
	for _, tt := range []struct {
		name string
		edit func(*Model)
		want []netip.Addr
		all  bool
	}{
		{name: "nothing", edit: func(m *Model) {}},
		{
			name: "an endpoint",
			edit: func(m *Model) { set(m, &Endpoint{}, "10.0.0.1", "fd00::1") },
			want: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")},
		},
		{name: "a new endpoint", edit: func(m *Model) { set(m, &Endpoint{}, "10.0.0.3") }, want: []netip.Addr{addr("10.0.0.3")}},
		{name: "an endpoint less", edit: func(m *Model) { set(m, nil, "10.0.0.2") }, want: []netip.Addr{addr("10.0.0.2")}},
		{name: "an address of another endpoint", edit: func(m *Model) { set(m, web, "10.0.0.2") }, want: []netip.Addr{addr("10.0.0.2")}},
		{
			name: "endpoints that are not an edit of the old ones",
			edit: func(m *Model) {
				m.Endpoints = NewEndpoints(map[netip.Addr]*Endpoint{addr("10.0.0.1"): web, addr("fd00::1"): web, addr("10.0.0.4"): db})
			},
			want: []netip.Addr{addr("10.0.0.2"), addr("10.0.0.4")},
		},
		{name: "ranges of this node", edit: func(m *Model) { m.Ranges = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")} }, all: true},
		{name: "isolation of ingress", edit: func(m *Model) { m.Isolating[Ingress] = true }, all: true},
		{name: "isolation of egress", edit: func(m *Model) { m.Isolating[Egress] = true }, all: true},
		{
			name: "ranges of all nodes",
			edit: func(m *Model) { m.PodRanges = NewPodRanges([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, nil) },
			all:  true,
		},
		{name: "audited policies", edit: func(m *Model) { m.Audit = &Audit{} }, all: true},
		{name: "a node", edit: func(m *Model) { m.Hosts = map[netip.Addr]*Host{addr("192.0.2.1"): {}} }, all: true},
		{name: "the own node", edit: func(m *Model) { m.Own = &Host{} }, all: true},
		{name: "a node less", edit: func(m *Model) { m.Hosts = nil }, all: true},
		{name: "an address of a node", edit: func(m *Model) { m.Hosts = map[netip.Addr]*Host{addr("192.0.2.2"): host} }, all: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, after := New(model(func(*Model) {})), New(model(tt.edit))
			for name, pair := range map[string][2]*Snapshot{"made": {before, after}, "undone": {after, before}} {
				addrs, all := pair[1].ChangedSince(pair[0])
				diff := cmp.Diff(tt.want, addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty())
				if all != tt.all || diff != "" {
					t.Errorf("%s: all is %v, want %v; addresses (-want +got):\n%s", name, all, tt.all, diff)
				}
			}
		})
	}
}

// A decision about an unknown source is lasting only if it would be the same for any pod that gets
// the address later, whichever pods wait for an address now.
func TestDecisionsAboutUnknownSourcesThatLast(t *testing.T) {
	waiting := &Endpoint{Namespace: "x", Name: "d", Labels: NewLabels(labels.Set{"pod": "d"})}
	byLabel := &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=c")), rule(NetworkPolicyTier, Allow)}}
	all := &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow)}}
	for _, tt := range []struct {
		name      string
		chain     *Chain
		newcomers []*Endpoint
		src       netip.Addr
		want      bool
	}{
		{"no pod waits for an address", byLabel, nil, addrFar, false},
		{"no pod that waits for an address is denied", byLabel, []*Endpoint{waiting}, addrFar, false},
		{"all pods are allowed", all, nil, addrFar, true},
		{"outside of all ranges of pods", byLabel, nil, addrWeb, true},
		{"a known pod", byLabel, nil, addrB, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := snapshot(tt.chain, nil)
			s.m.Newcomers, s.m.PodRanges = tt.newcomers, NewPodRanges([]netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, nil)
			d, lasting := s.EvaluateClass(packet.Class{Src: tt.src, Dst: addrA, Proto: packet.TCP, Port: 80})
			if !d.Allowed() || lasting != tt.want {
				t.Errorf("%v, lasting is %v, want %v", d, lasting, tt.want)
			}
		})
	}
}

// Names are learned and expire between snapshots, so no decision of a source whose policies name
// domains is lasting, whichever rule decides.
func TestDecisionsOfSourcesThatNameDomainsDoNotLast(t *testing.T) {
	byName := rule(NetworkPolicyTier, Allow, Peer{Domains: []Domain{{Name: "example.com"}}})
	for _, tt := range []struct {
		name  string
		chain *Chain
		want  bool
	}{
		{"no names", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=b")), isolate()}}, true},
		{"names of another rule", &Chain{Rules: []Rule{byName, rule(NetworkPolicyTier, Allow, pods("pod=b")), isolate()}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, dst := range []netip.Addr{addrB, addrWeb} {
				d, lasting := snapshot(nil, tt.chain).EvaluateClass(packet.Class{Src: addrA, Dst: dst, Proto: packet.TCP, Port: 80})
				if d.Allowed() != (dst == addrB) || lasting != tt.want {
					t.Errorf("to %v: %v, lasting is %v, want %v", dst, d, lasting, tt.want)
				}
			}
		})
	}
}
