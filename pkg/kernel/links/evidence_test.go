package links

import (
	"net/netip"
	"strings"
	"testing"
)

func TestEvidence(t *testing.T) {
	addrs := func(text string) (all []netip.Addr) {
		for field := range strings.FieldsSeq(text) {
			all = append(all, netip.MustParseAddr(field))
		}
		return all
	}
	pair := func(index int, name, direct string) *Link {
		return &Link{Index: index, Name: name, Kind: "veth", Hosts: addrs(direct), Direct: addrs(direct)}
	}
	const a4, a6, b4, b6 = "10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"
	bridge := &Link{Index: 9, Name: "cni0", Kind: "bridge", OnLink: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}}
	port := &Link{Index: 10, Name: "veth1", Kind: "veth", Master: 9}
	gateway := &Link{Index: 11, Name: "pod-network", Kind: "vxlan", Hosts: addrs(a4)}
	for _, tc := range []struct {
		name  string
		links []*Link // nil if they are not known
		named string
		addrs string
		want  Evidence
	}{
		{"routes to both families", []*Link{pair(1, "veth1", a4+" "+a6)}, "veth1", a4 + " " + a6, Proven},
		{"a route to one family", []*Link{pair(1, "veth1", a4)}, "veth1", a4 + " " + a6, NoEvidence},
		{"no route yet", []*Link{pair(1, "veth1", "")}, "veth1", a4, NoEvidence},
		{"an interface that is gone", []*Link{pair(1, "veth2", "")}, "veth1", a4, Refuted},
		{"one of two is gone", []*Link{bridge}, "cni0 veth1", a4, Refuted},
		{"no interfaces at all", []*Link{}, "veth1", a4, Refuted},
		{"the other pod's interface has the address", []*Link{pair(1, "veth1", b4), pair(2, "veth2", a4)}, "veth1", a4, Refuted},
		{"the other pod's interface has it, and this one nothing", []*Link{pair(1, "veth1", ""), pair(2, "veth2", a4)}, "veth1", a4, Refuted},
		{"the other family leads elsewhere", []*Link{pair(1, "veth1", a4), pair(2, "veth2", a6)}, "veth1", a4 + " " + a6, Refuted},
		{"a name that another pod's interface has again", []*Link{pair(1, "veth1", b4)}, "veth1", a4, Refuted},
		{"the same in IPv6", []*Link{pair(1, "veth1", b6)}, "veth1", a6, Refuted},
		{"the same of another family", []*Link{pair(1, "veth1", b6)}, "veth1", a4, NoEvidence},
		{"a bridge", []*Link{bridge, port}, "cni0 veth1", a4 + " " + a6, NoEvidence},
		{"a port whose address another pair has", []*Link{bridge, port, pair(2, "veth2", a4)}, "cni0 veth1", a4, Refuted},
		{"a route to all pods elsewhere", []*Link{bridge, pair(1, "veth2", "")}, "veth2", a4, NoEvidence},
		{"a route through a gateway elsewhere", []*Link{gateway, pair(1, "veth1", "")}, "veth1", a4, NoEvidence},
		{"no name", []*Link{pair(1, "veth1", b4)}, "", a4, NoEvidence},
		{"not read", nil, "veth1", a4, NoEvidence},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := &Watcher{}
			if tc.links != nil {
				w.links = Links{}
			}
			for _, l := range tc.links {
				w.links[l.Index] = l
			}
			got, known := w.Evidence(strings.Fields(tc.named), addrs(tc.addrs))
			if got != tc.want || known != (tc.links != nil) {
				t.Errorf("got %v, %v, want %v", got, known, tc.want)
			}
		})
	}
}
