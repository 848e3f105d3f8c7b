package enforce

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestPacketsOfNoPodsAddressAreOfThePodBehind has two pods, of which one may send nothing to its
// node and the other anything but to port 81, and packets to the node from a link-local address,
// by the interfaces of one of them, of both and of none.
func TestPacketsOfNoPodsAddressAreOfThePodBehind(t *testing.T) {
	shut, free := netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")
	linkLocal, node := netip.MustParseAddr("169.254.7.7"), netip.MustParseAddr("169.254.20.10")
	admin := func(ports ...policy.Port) *policy.Chain {
		return &policy.Chain{Rules: []policy.Rule{{Action: policy.Deny, Tier: policy.AdminTier, Policy: &policy.Ref{Name: "guard"}, AnyPeer: true, AnyPort: len(ports) == 0, Ports: ports}}}
	}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		shut: {Namespace: "x", Name: "shut", Egress: admin()},
		free: {Namespace: "x", Name: "free", Egress: admin(policy.Port{Proto: packet.TCP, First: 81, Last: 81})},
	})
	s := policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{shut, free})})
	const ofShut, ofFree, ofBoth, ofNone, notKnown = 3, 4, 5, 6, 7
	links := map[uint32]Behind{
		ofShut: {Single: true, Pod: []netip.Addr{shut}, ToHost: []netip.Addr{shut}},
		ofFree: {Single: true, Pod: []netip.Addr{free}, ToHost: []netip.Addr{free}},
		ofBoth: {ToHost: []netip.Addr{free, shut}},
		ofNone: {},
	}
	for _, tt := range []struct {
		name string
		in   Input
		want event.Result
	}{
		{"of a pod that is denied", Input{Payload: tcp(linkLocal, node, 80), ToHost: true, Link: ofShut}, event.Drop},
		{"of a pod that is allowed", Input{Payload: tcp(linkLocal, node, 80), ToHost: true, Link: ofFree}, event.Accept},
		{"of a pod that is denied this port", Input{Payload: tcp(linkLocal, node, 81), ToHost: true, Link: ofFree}, event.Drop},
		{"of one of two pods", Input{Payload: tcp(linkLocal, node, 80), ToHost: true, Link: ofBoth}, event.Drop},
		{"of no pod that is denied anything", Input{Payload: tcp(linkLocal, node, 80), ToHost: true, Link: ofNone}, event.Accept},
		{"of an interface that is not known", Input{Payload: tcp(linkLocal, node, 80), ToHost: true, Link: notKnown}, event.ShortWait},
		{"of an interface that stays unknown", Input{Payload: tcp(linkLocal, node, 80), ToHost: true, Link: notKnown, Last: true}, event.Drop},
		{"of one that may be a new pod", Input{Payload: tcp(tooNew, node, 80), ToHost: true, Link: ofBoth}, event.ShortWait},
		{"of one that has waited", Input{Payload: tcp(tooNew, node, 80), ToHost: true, Link: ofBoth, Last: true}, event.Drop},
		{"the address of a pod, whatever the interface", Input{Payload: tcp(free, node, 80), ToHost: true, Link: ofBoth}, event.Accept},
		{"not to the node", Input{Payload: tcp(linkLocal, node, 80), Link: ofShut}, event.Drop},
		{"not to the node, of an interface that is not known", Input{Payload: tcp(linkLocal, node, 80), Link: notKnown, Last: true}, event.Drop},
		{"without an interface", Input{Payload: tcp(linkLocal, node, 80), ToHost: true}, event.Accept},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := New(Config{})
			e.Swap(s)
			e.SetInterfaces(&Interfaces{Links: links})
			if got := e.Decide(tt.in); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestTheOnePodBehindIsNamed: the log and the flows name the sender of a packet with a
// foreign source address.
func TestTheOnePodBehindIsNamed(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("fd00::3")
	for src, want := range map[string]netip.Addr{"fe80::1": six, "0.0.0.0": four} {
		got := (&Behind{Pod: []netip.Addr{four, six}, ToHost: []netip.Addr{four}}).toHost(netip.AddrPortFrom(netip.MustParseAddr(src), 68))
		if got != netip.AddrPortFrom(want, 68) {
			t.Errorf("%s is evaluated as %v, want %v", src, got, want)
		}
	}
	if got := (&Behind{Pod: []netip.Addr{four}, ToHost: []netip.Addr{four}}).toHost(netip.MustParseAddrPort("[fe80::1]:68")); got.Addr() != four {
		t.Errorf("in a cluster of IPv4 it is evaluated as %v, want %v", got, four)
	}
}
