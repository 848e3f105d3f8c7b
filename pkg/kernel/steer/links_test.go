package steer

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// leavingBy makes a packet leave by an interface.
func leavingBy(name string) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.Output = name }
}

// NP-47: what leaves or enters by the interface of a selected pod is queued, whatever the addresses.
func TestPacketsOnInterfacesOfSelectedPods(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	sets := Sets{
		Ingress: []netip.Addr{v4, v6}, Egress: []netip.Addr{v4b, v6b}, Pods: []netip.Addr{v4, v6, v4b, v6b},
		IngressLinks: []string{"cali1"}, EgressLinks: []string{"cali2"}, MulticastLinks: []string{"cali1", "cni0"},
		CheckSources: true, Unchecked: []string{"eth0"}, Bridges: []string{"cni0"},
	}
	mustSync(t, s, sets)
	addr := netip.MustParseAddr
	vip4, vip6, group4, group6 := addr("192.0.2.10"), addr("2001:db8::10"), addr("239.1.1.1"), addr("ff0e::1")
	uplink, toOne, fromTwo := arrivingOn("eth0"), leavingBy("cali1"), arrivingOn("cali2")
	established, accepted := state(steertest.Established), marked(0, DefaultMark)
	checkTraces(t, fake, []traceCase{
		{"to an address behind the pod", pkt(peer4, vip4, uplink, toOne), queue},
		{"to an address behind the pod", pkt(peer6, vip6, uplink, toOne), queue},
		{"by IPVS", pkt(peer4, vip4, toOne), queue},
		{"sent by the node", pkt(peer4, vip4, fromNode, toOne), accept},
		{"with the node's address, forged", pkt(peer6, vip6, fromNode, uplink, toOne), queue},
		{"established", pkt(peer4, vip4, uplink, toOne, established), accept},
		{"late, the other way", pkt(vip4, peer4, arrivingOn("cali1"), segment), queue},
		{"late, the other way", pkt(peer6, vip6, uplink, leavingBy("cali2"), segment), queue},
		{"from an address behind the pod", pkt(vip4, peer4, fromTwo), queue},
		{"from an address behind the pod", pkt(vip6, peer6, fromTwo), queue},
		{"neither", pkt(vip6, peer6, arrivingOn("cali1")), accept},
		{"neither", pkt(peer4, vip4, uplink, leavingBy("cali2")), accept},
		{"neighbour discovery", pkt(peer6, vip6, icmpv6(135, 255), toOne), accept},

		{"multicast", pkt(peer4, group4, uplink, toOne), queue},
		{"multicast", pkt(peer6, group6, uplink, toOne), queue},
		{"multicast, accepted for another receiver", pkt(peer4, group4, uplink, toOne, accepted), queue},
		{"multicast that a forged reply made established", pkt(peer4, group4, uplink, toOne, established), queue},
		{"multicast to a bridge", pkt(peer6, group6, uplink, leavingBy("cni0")), queue},
		{"multicast at a bridge", pkt(v4, group4, bridged), drop},
		{"multicast of the node", pkt(peer4, group4, fromNode, toOne), accept},
		{"multicast to a pod that is not isolated", pkt(peer4, group4, uplink, leavingBy("cali3")), accept},
		{"multicast from an address behind the pod, accepted", pkt(vip6, group6, fromTwo, leavingBy("cali3"), accepted), queue},
	})
	sets.CheckSources = false
	mustSync(t, s, sets)
	checkTraces(t, fake, []traceCase{{"interfaces are not known", pkt(peer4, vip4, uplink, toOne), accept}})
}
