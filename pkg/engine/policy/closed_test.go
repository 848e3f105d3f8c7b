package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Closed names only pods for which no packet is allowed, whatever its peer.
func TestNothingIsAllowedForClosedPods(t *testing.T) {
	pod := netip.MustParseAddr("10.0.0.1")
	found := 0
	for seed := range uint64(3000) {
		c := chance{rand.New(rand.NewPCG(seed, 7))}
		chain := &Chain{}
		for range c.IntN(4) {
			r := c.rule(pick(c, AdminTier, NetworkPolicyTier, BaselineTier), 0)
			if c.IntN(2) == 0 {
				r.Action = Deny
			}
			chain.Rules = append(chain.Rules, r)
		}
		if c.IntN(2) == 0 {
			chain.Rules = append(chain.Rules, Rule{Tier: NetworkPolicyTier, Index: Isolation, AnyPeer: true, AnyPort: true})
		}
		slices.SortStableFunc(chain.Rules, func(a, b Rule) int { return int(a.Tier) - int(b.Tier) })
		known := NewEndpoints(map[netip.Addr]*Endpoint{
			pod:                             {Namespace: "x", Name: "pod", ID: FirstID, Egress: chain},
			netip.MustParseAddr("10.0.0.2"): {Namespace: "x", Name: "peer", Labels: NewLabels(map[string]string{"pod": "a"})},
		})
		s := New(Model{Endpoints: known, Local: NewLocal(known, []netip.Addr{pod})})
		if !slices.Contains(s.Closed(Egress), pod) {
			continue
		}
		found++
		for range 100 {
			p := packet.Packet{
				Src:   netip.AddrPortFrom(pod, 1),
				Dst:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(10 + c.IntN(2)), 0, byte(c.IntN(2)), byte(2 + c.IntN(4))}), uint16(c.IntN(100))),
				Proto: pick(c, packet.TCP, packet.UDP, packet.SCTP),
			}
			if d := s.Evaluate(Query{Packet: p}); d.Allowed() {
				t.Fatalf("seed %d: %v is allowed by %+v", seed, p, chain.Rules)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d closed pods", found)
	}
}

// A policy without rules, and a Deny of every address, close a pod.
func TestClosed(t *testing.T) {
	pod4, pod6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	everywhere := func(text string, except ...netip.Prefix) []Peer {
		return []Peer{{Blocks: []Block{{Prefix: netip.MustParsePrefix(text), Except: except}}}}
	}
	isolated := Rule{Tier: NetworkPolicyTier, Index: Isolation, AnyPeer: true, AnyPort: true}
	allowed := Rule{Tier: NetworkPolicyTier, Action: Allow, AnyPort: true, Peers: everywhere("192.0.2.0/24")}
	pass := Rule{Tier: AdminTier, Action: Pass, AnyPort: true, Peers: everywhere("192.0.2.0/24")}
	denied := Rule{Tier: AdminTier, AnyPort: true, AnyPeer: true}
	for _, tt := range []struct {
		name  string
		rules []Rule
		want  []netip.Addr
	}{
		{"isolated", []Rule{isolated}, []netip.Addr{pod4, pod6}},
		{"isolated but for a peer", []Rule{allowed, isolated}, nil},
		{"denied", []Rule{denied}, []netip.Addr{pod4, pod6}},
		{"denied every IPv4 address", []Rule{{Tier: AdminTier, AnyPort: true, Peers: everywhere("0.0.0.0/0")}}, []netip.Addr{pod4}},
		{"denied all but some", []Rule{{Tier: AdminTier, AnyPort: true, Peers: everywhere("0.0.0.0/0", netip.MustParsePrefix("10.0.0.0/8"))}}, nil},
		{"denied a protocol", []Rule{{Tier: AdminTier, AnyPeer: true, Ports: []Port{{Proto: packet.TCP}}}}, nil},
		{"passed before", []Rule{pass, denied}, nil},
		{"passed to isolation", []Rule{pass, denied, isolated}, []netip.Addr{pod4, pod6}},
	} {
		pod := &Endpoint{Namespace: "x", Name: "pod", ID: FirstID, Ingress: &Chain{Rules: tt.rules}}
		known := NewEndpoints(map[netip.Addr]*Endpoint{pod4: pod, pod6: pod})
		s := New(Model{Endpoints: known, Local: NewLocal(known, []netip.Addr{pod4, pod6})})
		if got := s.Closed(Ingress); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if got := s.Closed(Egress); got != nil {
			t.Errorf("%s: %v without a policy of egress", tt.name, got)
		}
	}
}
