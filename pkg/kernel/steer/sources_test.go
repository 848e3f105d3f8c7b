package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

func sourceCheck(c *Config) { c.SourceCheck = true }

// arrivingOn makes a packet arrive on an interface.
func arrivingOn(name string) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.Interface, p.Forwarded = name, true }
}

func TestSourceCheck(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, CheckSources: true, Unchecked: []string{"eth0", "up.5"}})
	checkTraces(t, fake, []traceCase{
		{"honest", pkt(v4b, peer4, arrivingOn("cali1")), accept},
		{"forged", pkt(v4b, peer4, arrivingOn("cali1"), astray), drop},
		{"forged", pkt(v6b, peer6, arrivingOn("cali1"), astray), drop},
		{"forged, to the node", pkt(v4b, peer4, arrivingOn("cali1"), astray, toHost), drop},
		{"forged, of another pod's connection", pkt(v4b, peer4, arrivingOn("cali1"), astray, state(steertest.Established), marked(0, DefaultMark)), drop},
		{"by an uplink", pkt(peer4, v4b, arrivingOn("eth0"), astray), accept},
		{"by an uplink", pkt(peer6, v6b, arrivingOn("up.5"), astray), accept},
		{"of the node", pkt(peer4, v4b, astray), accept},
		{"duplicate address detection", pkt(netip.IPv6Unspecified(), peer6, icmpv6(135, 255), arrivingOn("cali1"), astray, toHost), accept},
		{"UDP of no address", pkt(netip.IPv6Unspecified(), peer6, arrivingOn("cali1"), astray, toHost), drop},
	})
	mustSync(t, s, Sets{Unchecked: []string{"eth0"}})
	checkTraces(t, fake, []traceCase{{"no policy selects a pod", pkt(v4b, peer4, arrivingOn("cali1"), astray), accept}})
}

// FW-1 and FW-3: each list of sources applies to its own interfaces only.
func TestForwardedSources(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	sets := Sets{Ingress: []netip.Addr{v4, v6}, CheckSources: true, Unchecked: []string{"eth0"}, Forwards: []Forward{
		{[]string{"cali1", "cali2"}, prefixes("10.8.0.0/16", "10.8.1.0/24", "2001:db8::/64")},
		{[]string{"cali3"}, prefixes("192.0.2.7/32")},
	}}
	mustSync(t, s, sets)
	vpn, one := netip.MustParseAddr("10.8.1.5"), netip.MustParseAddr("192.0.2.7")
	vpn6 := netip.MustParseAddr("2001:db8::5")
	dst6 := netip.MustParseAddr("2001:db8:9::1")
	forwarded := []traceCase{
		{"allowed", pkt(vpn, peer4, arrivingOn("cali1"), astray), accept},
		{"allowed", pkt(vpn6, dst6, arrivingOn("cali2"), astray), accept},
		{"allowed, one address", pkt(one, peer4, arrivingOn("cali3"), astray), accept},
		{"allowed, to an isolated pod", pkt(vpn, v4, arrivingOn("cali1"), astray), queue},
		{"allowed, to the node", pkt(vpn, peer4, arrivingOn("cali1"), astray, toHost), accept},
	}
	checkTraces(t, fake, append([]traceCase{
		{"outside of the prefix", pkt(netip.MustParseAddr("10.9.0.1"), peer4, arrivingOn("cali1"), astray), drop},
		{"outside of the prefix", pkt(netip.MustParseAddr("2001:db8:0:1::1"), dst6, arrivingOn("cali1"), astray), drop},
		{"a pod", pkt(v4, peer4, arrivingOn("cali1"), astray), drop},
		{"what another namespace may", pkt(one, peer4, arrivingOn("cali1"), astray), drop},
		{"what another namespace may", pkt(vpn, peer4, arrivingOn("cali3"), astray), drop},
		{"what another namespace may", pkt(vpn6, dst6, arrivingOn("cali3"), astray), drop},
		{"of another connection", pkt(one, peer4, arrivingOn("cali1"), astray, state(steertest.Established), marked(0, DefaultMark)), drop},
		{"another pod", pkt(vpn, peer4, arrivingOn("cali4"), astray), drop},
		{"a bridge", pkt(vpn, peer4, arrivingOn("cni0"), astray), drop},
		{"an address of the node", pkt(vpn6, dst6, arrivingOn("cali1"), astray, fromNode), drop},
	}, forwarded...))
	sets.Forwards = sets.Forwards[:1]
	mustSync(t, s, sets)
	checkTraces(t, fake, []traceCase{{"no longer allowed", pkt(one, peer4, arrivingOn("cali3"), astray), drop}, forwarded[0]})
	sets.CheckSources = false
	mustSync(t, s, sets)
	for _, set := range []string{"forwarders-1", "forwarded-sources-1-v4"} {
		if n := len(fake.Table.Sets[set].Elements); n != 0 {
			t.Errorf("while sources are not checked, %s has %d elements", set, n)
		}
	}
}

func TestMoreForwardsThanSetsAreIgnored(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	sets := Sets{Ingress: []netip.Addr{v4}, CheckSources: true}
	for i := range MaxForwards + 1 {
		sets.Forwards = append(sets.Forwards, Forward{[]string{fmt.Sprint("cali", i)}, prefixes(fmt.Sprintf("10.%d.0.0/16", i))})
	}
	mustSync(t, s, sets)
	from := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i), 0, 1}) }
	checkTraces(t, fake, []traceCase{
		{"the last one", pkt(from(MaxForwards-1), peer4, arrivingOn(fmt.Sprint("cali", MaxForwards-1)), astray), accept},
		{"one more", pkt(from(MaxForwards), peer4, arrivingOn(fmt.Sprint("cali", MaxForwards)), astray), drop},
	})
}

// bridged makes a packet one that the bridge cni0 forwards between its ports.
func bridged(p *steertest.Packet) { arrivingOn("cni0")(p); p.Output, p.Bridged = "cni0", true }

// bridgedBy makes a packet one that this bridge forwards between its ports.
func bridgedBy(bridge string) func(*steertest.Packet) {
	return func(p *steertest.Packet) { bridged(p); p.Interface, p.Output = bridge, bridge }
}

func TestBridgedPacketsOfNoPod(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	sets := Sets{Ingress: []netip.Addr{v4, v6}, Pods: []netip.Addr{v4, v4b, v6, v6b}, CheckSources: true, Unchecked: []string{"eth0"}, Bridges: []string{"cni0"}}
	mustSync(t, s, sets)
	link6, other6, all6 := netip.MustParseAddr("fe80::2"), netip.MustParseAddr("fe80::3"), netip.MustParseAddr("ff02::1")
	all4 := netip.MustParseAddr("224.0.0.1")
	checkTraces(t, fake, []traceCase{
		{"link-local", pkt(link6, other6, bridged), drop},
		{"from a link-local address", pkt(link6, v6, bridged), drop},
		{"to a link-local address", pkt(v6b, other6, bridged), drop},
		{"invalid", pkt(link6, other6, bridged, state(steertest.Invalid)), drop},
		{"related", pkt(link6, other6, bridged, state(steertest.Related), proto("ipv6-icmp")), drop},
		{"accepted before a policy selected a pod", pkt(link6, other6, bridged, state(steertest.Established)), drop},
		{"accepted before a policy selected a pod", pkt(link6, v6, bridged, state(steertest.Established)), drop},
		{"accepted before a policy selected a pod", pkt(v6, link6, bridged, state(steertest.Established), reply), drop},
		{"a forged reply made it established", pkt(v6b, all6, bridged, state(steertest.Established)), drop},
		{"a forged reply made it established", pkt(v4b, all4, bridged, state(steertest.Established)), drop},
		{"a forged source", pkt(all6, v6b, bridged), drop},
		{"a forged source", pkt(all4, v4b, bridged, state(steertest.Established), reply), drop},
		{"accepted, one-way", pkt(link6, other6, bridged, marked(0, DefaultMark)), drop},
		{"to a link-local address", pkt(v4b, netip.MustParseAddr("169.254.1.2"), bridged), drop},
		{"to a link-local address, established", pkt(v4b, netip.MustParseAddr("169.254.1.2"), bridged, state(steertest.Established)), drop},
		{"established between pods", pkt(v4b, v4, bridged, state(steertest.Established)), accept},
		{"established between pods", pkt(v6b, v6, bridged, state(steertest.Established), reply), accept},
		{"to a link-local address of the node's network", pkt(v4b, netip.MustParseAddr("169.254.1.2"), arrivingOn("cni0")), accept},
		{"multicast", pkt(v6b, all6, bridged), drop},
		{"multicast", pkt(v4b, all4, bridged), drop},
		{"broadcast", pkt(v4b, netip.MustParseAddr("255.255.255.255"), bridged), drop},
		{"to a pod that no policy selects", pkt(v4, v4b, bridged), accept},
		{"to a pod that no policy selects", pkt(v6, v6b, bridged), accept},
		{"to a pod that a policy selects", pkt(v4b, v4, bridged), queue},
		{"to a pod that a policy selects", pkt(v6b, v6, bridged), queue},
		{"on a bridge that has no pods", pkt(link6, other6, bridgedBy("virbr0")), accept},
		{"solicitation", pkt(v6b, all6, icmpv6(135, 255), bridged), accept},
		{"solicitation", pkt(link6, v6, icmpv6(135, 255), bridged), accept},
		{"neighbour advertisement", pkt(link6, v6, icmpv6(136, 255), bridged), accept},
		{"solicitation that was forwarded", pkt(link6, all6, icmpv6(135, 64), bridged), drop},
		{"router advertisement", pkt(link6, all6, icmpv6(134, 255), bridged), drop},
		{"redirect", pkt(link6, v6, icmpv6(137, 255), bridged), drop},
		{"listener report", pkt(link6, all6, icmpv6(143, 1), bridged), accept},
	})
	sets.CheckSources = false
	mustSync(t, s, sets)
	checkTraces(t, fake, []traceCase{{"sources are not checked", pkt(link6, other6, bridged), accept}})
}

func TestPodTunnelPacketsAreDropped(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	mustSync(t, s, Sets{CheckSources: true, Unchecked: []string{"eth0"}, TunnelPorts: []uint16{8472}, TunnelProtocols: []uint8{4, 47}})
	port := func(n uint16) func(*steertest.Packet) { return func(p *steertest.Packet) { p.DstPort = n } }
	checkTraces(t, fake, []traceCase{
		{"VXLAN", pkt(v4, peer4, arrivingOn("cali1"), toHost, port(8472)), drop},
		{"VXLAN", pkt(v6, peer6, arrivingOn("cali1"), toHost, port(8472), state(steertest.Established)), drop},
		{"GRE", pkt(v4, peer4, arrivingOn("cali1"), toHost, proto("gre")), drop},
		{"IPIP", pkt(v4, peer4, arrivingOn("cali1"), toHost, proto("ipencap")), drop},
		{"VXLAN of another node", pkt(peer4, v4, arrivingOn("eth0"), toHost, port(8472)), accept},
		{"GRE of another node", pkt(peer4, v4, arrivingOn("eth0"), toHost, proto("gre")), accept},
		{"VXLAN to another destination", pkt(v4, peer4, arrivingOn("cali1"), port(8472)), accept},
		{"another port", pkt(v4, peer4, arrivingOn("cali1"), toHost, port(53)), accept},
		{"TCP", pkt(v4, peer4, arrivingOn("cali1"), toHost, port(8472), proto("tcp")), accept},
		{"IPv6 in IPv4, which is not named", pkt(v4, peer4, arrivingOn("cali1"), toHost, proto("ipv6")), accept},
	})
}

// If an administrator may deny a pod its node, every packet to the node on the pod's interface from an
// address that belongs to no pod is queued at input.
func TestOtherSourcesAreQueuedAtInput(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	sets := Sets{
		ToHost: []netip.Addr{v4, v6}, Pods: []netip.Addr{v4, v6, v4b, v6b}, HostLinks: []string{"cali1"},
		CheckSources: true, Unchecked: []string{"eth0"},
		Forwards: []Forward{{Links: []string{"cali1"}, Sources: prefixes("10.8.0.0/24")}},
	}
	mustSync(t, s, sets)
	addr := netip.MustParseAddr
	link6, node6, any6, any4 := addr("fe80::2"), addr("fe80::1"), addr("::"), addr("0.0.0.0")
	all6, routers6, dhcp6, all4 := addr("ff02::1"), addr("ff02::2"), addr("ff02::1:2"), addr("255.255.255.255")
	input := func(src, dst netip.Addr, edits ...func(*steertest.Packet)) steertest.Packet {
		return pkt(src, dst, append([]func(*steertest.Packet){arrivingOn("cali1"), toHost}, edits...)...)
	}
	established, related := state(steertest.Established), state(steertest.Related)
	ports := func(src, dst uint16) func(*steertest.Packet) {
		return func(p *steertest.Packet) { p.SrcPort, p.DstPort = src, dst }
	}
	cases := []traceCase{
		{"link-local", input(link6, node6), queue},
		{"link-local, to another address of the node", input(link6, peer6), queue},
		{"link-local, established", input(link6, node6, proto("tcp"), established), queue},
		{"link-local, accepted before", input(link6, node6, marked(0, DefaultMark)), queue},
		{"link-local, invalid", input(link6, node6, proto("tcp"), state(steertest.Invalid)), queue},
		{"to all nodes", input(link6, all6, icmpv6(128, 64)), queue},
		{"IPv4 without an address", input(any4, all4, ports(68, 68)), queue},
		{"IPv4 without an address, not to everyone", input(any4, peer4, ports(68, 67)), queue},
		{"IPv6 without an address", input(any6, all6, icmpv6(128, 64)), queue},
		{"of no pod", input(addr("10.244.1.77"), peer4), queue},
		{"of no pod, established", input(addr("10.244.1.77"), peer4, established), queue},
		{"DHCPv6 to one server", input(link6, node6, ports(546, 547)), queue},

		{"an answer to the node", input(link6, node6, reply, established), accept},
		{"an error about what the node has sent", input(link6, node6, proto("ipv6-icmp"), reply, related), accept},
		{"neighbour solicitation", input(link6, all6, icmpv6(135, 255)), accept},
		{"duplicate address detection", input(any6, all6, icmpv6(135, 255), astray), accept},
		{"router solicitation", input(link6, routers6, icmpv6(133, 255)), accept},
		{"listener report", input(link6, routers6, icmpv6(143, 1)), accept},
		{"listener report without an address", input(any6, routers6, icmpv6(143, 1), astray), accept},
		{"DHCP", input(any4, all4, ports(68, 67)), accept},
		{"DHCPv6", input(link6, dhcp6, ports(546, 547)), accept},
		{"forwarded for others", input(addr("10.8.0.1"), peer4), accept},
		{"another pod", input(v4b, peer4), accept},
		{"another pod, established", input(v6b, peer6, established), accept},
		{"established", input(v6, peer6, established), accept},
		{"by another interface", pkt(link6, node6, arrivingOn("cali2"), toHost), accept},
		{"by the uplink", pkt(link6, node6, arrivingOn("eth0"), toHost), accept},
		{"not to the node", pkt(link6, node6, arrivingOn("cali1"), forwarded), accept},
		{"first packet of the pod", input(v6, node6), queue},
	}
	checkTraces(t, fake, cases)

	// Once accepted, a packet is not queued again.
	for _, tt := range cases {
		queued := 0
		got, err := steertest.Trace(fake, tt.packet, func(steertest.Packet, string) (steertest.Verdict, uint32) {
			queued++
			return accept, DefaultMark
		})
		if err != nil || got.Verdict != accept || queued > 1 || got.Mark != 0 {
			t.Errorf("%s: %+v after %d queues, %v", tt.name, got, queued, err)
		}
	}
	sets.CheckSources = false
	mustSync(t, s, sets)
	checkTraces(t, fake, []traceCase{{"sources are not checked", input(link6, node6), accept}})
}

func TestImpossibleInterfaceNamesAreIgnored(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	mustSync(t, s, Sets{CheckSources: true, Unchecked: []string{"eth0", "", "way-too-long-name"}})
	want := Sets{CheckSources: true, Unchecked: []string{"eth0"}}.contents()
	if got := fakeContents(fake); !equalContents(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSourceCheckNeedsKernelSupport(t *testing.T) {
	for _, tt := range []struct {
		answer error
		want   bool
	}{{nil, true}, {errors.New("not permitted"), true}, {fmt.Errorf("%w here", errors.ErrUnsupported), false}} {
		t.Run(fmt.Sprint(tt.answer), func(t *testing.T) {
			if got := (Capabilities{SourceCheck: tt.answer}).checksSources(); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{CheckSources: true})
	if c := fake.Table.Chains[sourcesChain]; c != nil {
		t.Errorf("without the check its chain has %v", c.Rules)
	}
}

func TestICMPErrorsOfPodsAreQueued(t *testing.T) {
	s, fake := newFake(t, sourceCheck)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}, Egress: []netip.Addr{v4b, v6b}, Pods: []netip.Addr{v4, v4b, v6, v6b}, CheckSources: true, Unchecked: []string{"eth0"}})
	related := state(steertest.Related)
	cases := []struct {
		traceCase
		marked bool // it has the mark when it is queued
	}{
		{traceCase{"of an isolated pod", pkt(v4b, peer4, arrivingOn("cali1"), related, proto("icmp")), queue}, true},
		{traceCase{"of an isolated pod", pkt(v6b, peer6, arrivingOn("cali1"), related, proto("ipv6-icmp")), queue}, true},
		{traceCase{"to an isolated pod", pkt(peer4, v4, arrivingOn("cali1"), related, proto("icmp")), queue}, true},
		{traceCase{"of an isolated pod, on a bridge", pkt(v4b, peer4, bridged, related, proto("icmp")), queue}, true},
		{traceCase{"of an isolated pod, on a bridge", pkt(v6b, peer6, bridged, related, proto("ipv6-icmp")), queue}, true},
		{traceCase{"of another pod to an isolated one, on a bridge", pkt(v4b, v4, bridged, related, proto("icmp")), queue}, true},
		{traceCase{"of a node by IPVS", pkt(peer4, v4, related, proto("icmp")), accept}, false},
		{traceCase{"between others", pkt(peer4, v4b, arrivingOn("cali1"), related, proto("icmp")), accept}, false},
		{traceCase{"of a router", pkt(peer4, v4, arrivingOn("eth0"), related, proto("icmp")), accept}, false},
		{traceCase{"of this node", pkt(peer4, v4, related, proto("icmp")), accept}, false},
		{traceCase{"to this node", pkt(v4b, peer4, arrivingOn("cali1"), toHost, related, proto("icmp")), accept}, false},
		{traceCase{"no error, but expected by a helper", pkt(v4b, peer4, arrivingOn("cali1"), related, proto("tcp")), queue}, false},
		{traceCase{"related to nothing, with a mark", pkt(v4b, peer4, arrivingOn("cali1"), state(steertest.Invalid), proto("icmp"), marked(DefaultMark, 0)), queue}, false},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			checkTraces(t, fake, []traceCase{tt.traceCase})
			got, err := steertest.Trace(fake, tt.packet, func(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
				if (p.Mark&DefaultMark != 0) != tt.marked {
					t.Errorf("queued with mark %#x", p.Mark)
				}
				return accept, p.Mark | DefaultMark
			})
			if isError := tt.packet.State == steertest.Related && tt.packet.Proto != "tcp"; err != nil || got.Mark != 0 || isError && got.CTMark != 0 {
				t.Errorf("%+v, %v: an accepted error leaves marks", got, err)
			}
		})
	}
}
