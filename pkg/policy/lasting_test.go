package policy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A change of something that decisions about any address may depend on concerns all of
// them, another one only the addresses of the endpoints that it changes.
func TestChangedSince(t *testing.T) {
	addr := netip.MustParseAddr
	web, db, host := &Endpoint{}, &Endpoint{}, &Host{}
	model := func(edit func(*Model)) Model {
		m := Model{
			Endpoints: NewEndpoints(map[netip.Addr]*Endpoint{addr("10.0.0.1"): web, addr("fd00::1"): web, addr("10.0.0.2"): db}),
			Ranges:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
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
		{name: "a node", edit: func(m *Model) { m.Hosts = map[netip.Addr]*Host{addr("192.0.2.1"): {}} }, all: true},
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
