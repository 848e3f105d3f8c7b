package policy

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// TestLatePacketsNeedBothDirections has pods that policies select in one direction only, and an
// unused address in the node's range.
func TestLatePacketsNeedBothDirections(t *testing.T) {
	const open, receives, sends, serves, unknown, outside = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.9", "192.0.2.1"
	ref := &Ref{Namespace: "x", Name: "p"}
	none := &Chain{Rules: []Rule{{Tier: NetworkPolicyTier, Policy: ref, Index: Isolation, AnyPeer: true, AnyPort: true}}}
	port80 := &Chain{Rules: append([]Rule{{Action: Allow, Tier: NetworkPolicyTier, Policy: ref, AnyPeer: true, Ports: []Port{{Proto: packet.TCP, First: 80, Last: 80}}}}, none.Rules...)}
	endpoints := map[netip.Addr]*Endpoint{}
	for addr, e := range map[string]*Endpoint{
		open: {Name: "open"}, receives: {Name: "receives-nothing", Ingress: none}, sends: {Name: "sends-nothing", Egress: none}, serves: {Name: "serves", Ingress: port80},
	} {
		endpoints[netip.MustParseAddr(addr)] = e
	}
	s := New(Model{Endpoints: NewEndpoints(endpoints), Unknown: Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [2]bool{Ingress: true}}})
	for _, tt := range []struct {
		name     string
		src, dst string
		toHost   bool
		want     string // the decision
		swapped  bool   // the decision is about the other direction
	}{
		{"no policy", open + ":40000", outside + ":80", false, "allow egress, not selected", true},
		{"to a pod that receives nothing", open + ":40000", receives + ":80", false, "deny ingress by networkpolicy x/p, isolated", false},
		{"from a pod that receives nothing", receives + ":40000", open + ":80", false, "deny ingress by networkpolicy x/p, isolated", true},
		{"from a pod that sends nothing", sends + ":40000", open + ":80", false, "deny egress by networkpolicy x/p, isolated", false},
		{"to a pod that sends nothing", open + ":40000", sends + ":80", false, "deny egress by networkpolicy x/p, isolated", true},
		{"to a server", open + ":40000", serves + ":80", false, "allow ingress by networkpolicy x/p rule 0", false},
		{"from a server", serves + ":80", open + ":40000", false, "allow ingress by networkpolicy x/p rule 0", true},
		{"of a server to another one", serves + ":40000", open + ":80", false, "deny ingress by networkpolicy x/p, isolated", true},
		{"to the node", receives + ":40000", outside + ":80", true, "allow egress, own node", false},
		// Packets with an unknown end wait, unless the other direction is denied.
		{"to an unknown pod", open + ":40000", unknown + ":80", false, "deny ingress, unknown pod", false},
		{"from an unknown pod", unknown + ":40000", open + ":80", false, "deny ingress, unknown pod", true},
		{"from an unknown pod to one that sends nothing", unknown + ":40000", sends + ":80", false, "deny egress by networkpolicy x/p, isolated", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := Query{Packet: packet.Packet{Src: netip.MustParseAddrPort(tt.src), Dst: netip.MustParseAddrPort(tt.dst), Proto: packet.TCP}, ToHost: tt.toHost}
			d, decided := s.EvaluateLate(q)
			if got := d.String(); got != tt.want || (decided.Packet != q.Packet) != tt.swapped {
				t.Errorf("%q about %v, want %q", got, decided.Packet, tt.want)
			}
		})
	}
}
