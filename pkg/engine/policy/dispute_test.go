package policy

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// away routes all addresses to other nodes.
type away struct{}

func (away) LeadsAway(netip.Addr, []netip.Prefix, []netip.Addr) bool { return true }

// TestDisputes: NP-63 and NP-64. x/a lets in y, and an administrator denies z in both directions and
// allows nodes. A peer that may be one of several pods gets what all of them get.
func TestDisputes(t *testing.T) {
	subject := netip.MustParseAddr("10.1.0.1")
	pods := func(namespace string) []Peer {
		return []Peer{{Pods: &PodSelector{Namespace: namespace, Pods: labels.Everything()}}}
	}
	ref := &Ref{Name: "p"}
	rules := []Rule{
		{Action: Deny, Tier: AdminTier, Policy: ref, Peers: pods("z"), AnyPort: true},
		{Action: Allow, Tier: AdminTier, Policy: ref, Index: 1, Peers: []Peer{{Nodes: labels.Everything()}}, AnyPort: true},
		{Action: Allow, Tier: NetworkPolicyTier, Policy: ref, Peers: pods("y"), AnyPort: true},
		{Action: Deny, Tier: NetworkPolicyTier, Policy: ref, Index: Isolation, AnyPeer: true, AnyPort: true},
	}
	pod := func(namespace string) *Endpoint {
		return &Endpoint{Namespace: namespace, Name: "p", Version: NewVersion(), NamespaceLabels: NewLabels(nil)}
	}
	w, y, y2, z := pod("w"), pod("y"), pod("y"), pod("z")
	for _, tc := range []struct {
		name    string
		dispute Dispute
		host    bool   // the status of a Node has the address
		want    string // without routes
		away    string // if routes lead away, "" for the same
	}{
		{"both allowed", Dispute{Pods: []*Endpoint{y, y2}}, false, "allow", ""},
		{"one isolated", Dispute{Pods: []*Endpoint{y, w}}, false, "deny", ""},
		{"one denied", Dispute{Pods: []*Endpoint{y, z}}, false, "deny", ""},
		{"here, allowed elsewhere", Dispute{Pods: []*Endpoint{y}, Here: true}, false, "wait", "allow"},
		{"here, denied elsewhere", Dispute{Pods: []*Endpoint{z}, Here: true}, false, "deny", "deny"},
		{"here, two elsewhere", Dispute{Pods: []*Endpoint{y, z}, Here: true}, false, "deny", "deny"},
		{"a node, allowed as a pod", Dispute{Pods: []*Endpoint{y}, NoPod: true}, true, "allow", ""},
		{"a node, isolated as a pod", Dispute{Pods: []*Endpoint{w}, NoPod: true}, true, "deny", ""},
		{"a node, denied as a pod", Dispute{Pods: []*Endpoint{z}, NoPod: true}, true, "deny", ""},
		{"perhaps a node", Dispute{NoPod: true, NoHost: true}, true, "deny", ""},
		{"perhaps a node, allowed as a pod", Dispute{Pods: []*Endpoint{y}, NoPod: true, NoHost: true}, true, "deny", ""},
	} {
		peer := netip.MustParseAddr("10.2.0.9")
		if tc.dispute.Here {
			peer = netip.MustParseAddr("10.1.0.9")
		}
		a := &Endpoint{Namespace: "x", Name: "a", Version: NewVersion(), NamespaceLabels: NewLabels(nil), Ingress: &Chain{Rules: rules}, Egress: &Chain{Rules: rules}}
		m := Model{
			Endpoints: NewEndpoints(map[netip.Addr]*Endpoint{subject: a, peer: {Dispute: &tc.dispute}}),
			Unknown:   Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Isolating: [2]bool{true, true}},
		}
		m.Local = NewLocal(m.Endpoints, []netip.Addr{subject})
		if tc.host {
			m.Hosts = map[netip.Addr]*Host{peer: {labels.Set{}}}
		}
		s := New(m)
		for _, routes := range []Routes{nil, away{}} {
			want := tc.want
			if routes != nil && tc.away != "" {
				want = tc.away
			}
			for d, p := range []packet.Packet{
				Ingress: {Proto: packet.TCP, Src: netip.AddrPortFrom(peer, 1), Dst: netip.AddrPortFrom(subject, 80)},
				Egress:  {Proto: packet.TCP, Src: netip.AddrPortFrom(subject, 1), Dst: netip.AddrPortFrom(peer, 80)},
			} {
				q := Query{Packet: p, Routes: routes}
				got := s.EvaluateDirection(Direction(d), q)
				if name(got) != want {
					t.Errorf("%s, %v, routes %v: %v, want %s", tc.name, Direction(d), routes != nil, got, want)
				}
				if s.Lasting(q, got) && (got.Wait() != NoWait || tc.dispute.Here) {
					t.Errorf("%s, %v, routes %v: %v is lasting", tc.name, Direction(d), routes != nil, got)
				}
				if n := testing.AllocsPerRun(100, func() { s.Evaluate(q) }); n > 0 {
					t.Errorf("%s, %v: %v allocations", tc.name, Direction(d), n)
				}
			}
		}
		if s.Endpoint(peer) != nil {
			t.Errorf("%s: the address belongs to %v", tc.name, s.Endpoint(peer))
		}
	}
}

// name returns "allow", "deny" or "wait".
func name(d Decision) string {
	if d.Wait() != NoWait {
		return "wait"
	}
	return d.Action.String()
}
