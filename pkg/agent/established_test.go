package agent

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// TestOnlyWhatIsDeniedForGoodIsCut has a pod of this node that accepts nothing,
// and an address next to it that may be a new pod's.
func TestOnlyWhatIsDeniedForGoodIsCut(t *testing.T) {
	isolated, open := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3")
	judge := established(policy.New(policy.Model{
		Endpoints: map[netip.Addr]*policy.Endpoint{
			isolated: {Namespace: "x", Name: "isolated", Ingress: &policy.Chain{Rules: []policy.Rule{{
				Verdict: policy.Deny, Tier: policy.NetworkPolicyTier, Policy: "x/deny", Index: policy.Isolation,
				AnyPeer: true, AnyPort: true,
			}}}},
			open: {Namespace: "x", Name: "open"},
		},
		Local:     []netip.Addr{isolated, open},
		Ranges:    []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Isolating: [2]bool{policy.Ingress: true},
	}))
	for _, tt := range []struct {
		src, dst string
		want     conntrack.Verdict
	}{
		{"10.244.1.3:40000", "10.244.1.2:80", conntrack.Cut},
		{"192.0.2.1:40000", "10.244.1.2:80", conntrack.Cut},
		{"10.244.1.2:40000", "10.244.1.3:80", conntrack.Go},
		{"192.0.2.1:40000", "192.0.2.2:80", conntrack.Go},
		{"192.0.2.1:40000", "10.244.1.9:80", conntrack.Leave},
		{"10.244.1.9:40000", "10.244.1.2:80", conntrack.Leave},
	} {
		p := packet.Packet{Src: netip.MustParseAddrPort(tt.src), Dst: netip.MustParseAddrPort(tt.dst), Proto: packet.TCP}
		if got := judge(p); got != tt.want {
			t.Errorf("%v: %d, want %d", p, got, tt.want)
		}
	}
}
