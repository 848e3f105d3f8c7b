package enforce

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestPacketsAreOfThePodBehindTheInterface has a pod that is isolated in both directions but for port
// 81, and one that no policy selects.
func TestPacketsAreOfThePodBehindTheInterface(t *testing.T) {
	shut, free := netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")
	vip, group, outside := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("192.0.2.1")
	tooNew, forwarded := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.8.0.1")
	chain := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "some"}, AnyPeer: true, Ports: []policy.Port{{Proto: packet.TCP, First: 81, Last: 81}}},
		{Action: policy.Deny, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "some"}, AnyPeer: true, AnyPort: true, Index: policy.Isolation},
	}}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		shut: {Namespace: "x", Name: "shut", Egress: chain, Ingress: chain},
		free: {Namespace: "x", Name: "free"},
	})
	s := policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{shut, free}), Unknown: policy.Unknown{
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [2]bool{true, true},
	}})
	const ofShut, ofFree, bridge, uplink, pair, notKnown = 3, 4, 5, 6, 7, 8
	e := New(Config{AcceptClass: func(*event.Event) bool { return true }})
	e.Swap(s)
	e.SetInterfaces(&Interfaces{Links: map[uint32]Behind{
		ofShut: {Single: true, Pod: []netip.Addr{shut}, Forwards: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/24")}},
		ofFree: {Single: true, Pod: []netip.Addr{free}},
		bridge: {Receivers: []netip.Addr{shut}},
		uplink: {},
		pair:   {Single: true},
	}, Routes: []Route{
		{netip.MustParsePrefix("198.51.100.8/32"), ofFree},
		{netip.MustParsePrefix("198.51.100.9/32"), ofShut}, {netip.MustParsePrefix("198.51.100.9/32"), ofFree},
		{netip.MustParsePrefix("198.51.100.0/24"), ofShut}, {netip.MustParsePrefix("0.0.0.0/0"), ofShut},
	}})
	for _, tt := range []struct {
		name          string
		src, dst      netip.Addr
		port          uint16
		link, outLink uint32
		want          event.Result
	}{
		{"to the pod", outside, vip, 80, uplink, ofShut, event.Drop},
		{"to the pod, allowed and not remembered", outside, vip, 81, uplink, ofShut, event.Accept},
		{"to another pod, not remembered", outside, vip, 80, uplink, ofFree, event.Accept},
		{"to no known pod, not remembered", outside, vip, 80, uplink, pair, event.Accept},
		{"elsewhere", outside, vip, 80, uplink, uplink, event.AcceptClass},
		{"the pod's own address", outside, shut, 81, uplink, ofShut, event.AcceptClass},
		{"a copy for another pod, to the pod", outside, free, 80, uplink, ofShut, event.Drop},
		{"a copy for another pod, allowed and not remembered", outside, free, 81, uplink, ofShut, event.Accept},
		{"a copy for the pod, to another pod", outside, shut, 80, uplink, ofFree, event.Accept},
		{"from the pod", vip, outside, 80, ofShut, uplink, event.Drop},
		{"from the pod, allowed and not remembered", vip, outside, 81, ofShut, uplink, event.Accept},
		{"from the pod to itself", vip, shut, 80, ofShut, ofShut, event.Accept},
		{"from the pod, forwarded", forwarded, outside, 80, ofShut, uplink, event.Accept},
		{"from the pod to another", vip, free, 80, ofShut, ofFree, event.Drop},
		{"the address of another pod", free, outside, 80, ofShut, uplink, event.AcceptClass},
		{"one that may be a new pod's", outside, tooNew, 81, uplink, ofShut, event.ShortWait},
		{"from an interface that is not known", outside, free, 80, notKnown, ofFree, event.ShortWait},
		{"to an interface that is not known", free, outside, 80, ofFree, notKnown, event.ShortWait},
		{"before routing, to the pod", outside, vip, 80, uplink, 0, event.Drop},
		{"before routing, to another pod", outside, netip.MustParseAddr("198.51.100.8"), 80, uplink, 0, event.Accept},
		{"before routing, to one of two", outside, netip.MustParseAddr("198.51.100.9"), 80, uplink, 0, event.AcceptClass},
		{"before routing, by the default route", outside, netip.MustParseAddr("203.0.113.7"), 80, uplink, 0, event.Drop},
		{"before routing, multicast", outside, group, 80, uplink, 0, event.AcceptClass},
		{"multicast to the pod", outside, group, 80, uplink, ofShut, event.Drop},
		{"multicast to the pod, reported as from it", outside, group, 80, ofShut, ofShut, event.Drop},
		{"multicast to a bridge", outside, group, 80, uplink, bridge, event.Drop},
		{"multicast to a bridge, allowed and not remembered", outside, group, 81, uplink, bridge, event.Accept},
		{"multicast to another pod", outside, group, 80, uplink, ofFree, event.Accept},
		{"multicast from the pod", vip, group, 80, ofShut, ofFree, event.Drop},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := Input{Payload: tcp(tt.src, tt.dst, tt.port), Link: tt.link, OutLink: tt.outLink}
			if got := e.Decide(in); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if n := testing.AllocsPerRun(10, func() { e.Decide(in) }); n != 0 && tt.want != event.Drop && tt.want != event.ShortWait {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
