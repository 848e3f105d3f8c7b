package compile

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

var gateMatchAll = &Gate{
	"MatchAll", Proposed, "NPEP-248", "`all`, every address of both families, as a peer of administrators' policies",
	func(f *Features) *bool { return &f.MatchAll },
}

// all compiles a peer that is every address (CN-45).
func (*adminRule) all(location, *proposed.EgressPeer) policy.Peer {
	return policy.Peer{Blocks: []policy.Block{{Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}, {Prefix: netip.PrefixFrom(netip.IPv6Unspecified(), 0)}}}
}
