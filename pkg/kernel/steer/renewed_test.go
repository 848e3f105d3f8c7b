package steer

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// Once the agent has accepted a packet, or the node has sent one, the connection passes in both directions,
// and no other of the stale address.
func TestRenewedConnectionsPass(t *testing.T) {
	all := map[string]func(*Config){"plain": nil, "remembered": remembering}
	for name, edit := range variants {
		all[name] = edit
	}
	established := state(steertest.Established)
	swap := func(p steertest.Packet) steertest.Packet {
		p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
		p.State, p.Reply, p.TCPFlags = steertest.Established, true, steertest.ACK
		return p
	}
	for name, edit := range all {
		for _, f := range []struct{ pod, peer netip.Addr }{{v4, peer4}, {v6, peer6}} {
			t.Run(name+" "+f.pod.String(), func(t *testing.T) {
				s, fake := newFake(t, edit)
				mustSync(t, s, Sets{Stale: []netip.Addr{f.pod}, ToHost: []netip.Addr{f.pod}, Answered: []netip.Addr{f.pod}})
				mustOverride(t, s, Overrides{Again: []End{{Addr: f.pod}, {Addr: f.pod, Ingress: true}}})
				ports := func(p *steertest.Packet) { p.SrcPort, p.DstPort, p.Proto = 40000, 80, "tcp" }
				syn := pkt(f.pod, f.peer, forwarded, ports)
				first := func(p steertest.Packet, want steertest.Verdict) {
					t.Helper()
					if got, err := steertest.Trace(fake, p, accepting); err != nil || got.Verdict != want {
						t.Errorf("%+v: %v, %v", p, got, err)
					}
				}
				checkTraces(t, fake, []traceCase{
					{"first packet", syn, queue},
					{"an answer to a predecessor", swap(syn), queue},
					{"of a connection of a predecessor", pkt(f.pod, f.peer, forwarded, ports, established), queue},
				})
				first(syn, accept)
				mustOverride(t, s, Overrides{Marked: []End{{Addr: f.pod}, {Addr: f.pod, Ingress: true}}})
				checkTraces(t, fake, []traceCase{
					{"answer", swap(syn), accept},
					{"next packet", pkt(f.pod, f.peer, forwarded, ports, established), accept},
					{"another port of the client", pkt(f.peer, f.pod, forwarded, ports, established, reply), queue},
					{"the other direction", pkt(f.peer, f.pod, forwarded, ports, established), queue},
					{"blocked", pkt(f.pod, f.peer, forwarded, ports, established, marked(0, 0x800)), steertest.Reject},
				})

				// Accepted packets of connections that another end has opened renew none.
				answer := pkt(f.pod, f.peer, forwarded, ports, dport(81), established, reply)
				first(answer, accept)
				related := pkt(f.pod, f.peer, forwarded, ports, dport(82), proto("icmp"), state(steertest.Related))
				first(related, accept)
				checkTraces(t, fake, []traceCase{
					{"after an answer", swap(answer), queue},
					{"after an ICMP error", pkt(f.pod, f.peer, forwarded, dport(82), established), queue},
				})

				probe := pkt(f.peer, f.pod, fromNode, ports, dport(8080))
				first(probe, accept)
				back := swap(probe)
				back.SrcLocal, back.Forwarded, back.ToHost = false, true, true
				toNode := pkt(f.pod, f.peer, forwarded, ports, toHost, dport(10250))
				checkTraces(t, fake, []traceCase{
					{"answer to a probe", back, accept},
					{"to the node", toNode, queue},
					{"to the node, of a predecessor", pkt(f.pod, f.peer, forwarded, ports, toHost, dport(10250), established), queue},
				})
				first(toNode, accept)
				checkTraces(t, fake, []traceCase{{"to the node, accepted", pkt(f.pod, f.peer, forwarded, ports, toHost, dport(10250), established), accept}})

				renewed, err := s.Renewed(t.Context())
				if _, ok := renewed[packetOf(syn)]; len(renewed) != 3 || !ok || err != nil {
					t.Errorf("renewed: %v, %v", renewed, err)
				}
				if err := s.ForgetRenewed(t.Context(), []netip.Addr{v4b, v6b}); err != nil {
					t.Fatal(err)
				}
				checkTraces(t, fake, []traceCase{{"others are forgotten", swap(syn), accept}})
				if err := s.ForgetRenewed(t.Context(), []netip.Addr{f.pod}); err != nil {
					t.Fatal(err)
				}
				checkTraces(t, fake, []traceCase{{"it is forgotten", swap(syn), queue}, {"to the node, forgotten", pkt(f.pod, f.peer, forwarded, ports, toHost, dport(10250), established), queue}})
			})
		}
	}
}

func packetOf(p steertest.Packet) packet.Packet {
	return packet.Packet{Src: netip.AddrPortFrom(p.Src, p.SrcPort), Dst: netip.AddrPortFrom(p.Dst, p.DstPort), Proto: packet.TCP}
}

// Late packets of a stale address may be of connections of a predecessor, in any state.
func TestStalePacketsThatOpenNothingAreLate(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Stale: []netip.Addr{v4, v6}})
	for _, tt := range []struct {
		packet steertest.Packet
		want   bool
	}{
		{pkt(v4, peer4, proto("tcp"), state(steertest.Established), func(p *steertest.Packet) { p.TCPFlags = steertest.ACK }), true},
		{pkt(peer6, v6, proto("tcp"), state(steertest.Established), reply, func(p *steertest.Packet) { p.TCPFlags = steertest.ACK }), true},
		{pkt(v4, peer4, proto("tcp"), state(steertest.Established)), false},
		{pkt(peer6, v6, proto("sctp"), state(steertest.Established)), true},
		{pkt(v4, peer4, state(steertest.Established)), false},
	} {
		late := false
		_, err := steertest.Trace(fake, tt.packet, func(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
			late = p.Mark&DefaultMark != 0
			return drop, p.Mark
		})
		if err != nil || late != tt.want {
			t.Errorf("%+v: late %v, %v", tt.packet, late, err)
		}
	}
}

// exchangeOld lets a connection be answered before its address becomes stale.
func exchangeOld(t *testing.T, client net.Conn, server *net.UDPConn) netip.AddrPort {
	t.Helper()
	say(t, client, "old")
	buf := make([]byte, 100)
	_, src, err := server.ReadFromUDPAddrPort(buf)
	if err == nil {
		_, err = server.WriteToUDPAddrPort(buf[:3], src)
	}
	if err == nil {
		client.SetReadDeadline(time.Now().Add(patience))
		_, err = client.Read(buf)
	}
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// A successor's connections are decided and answered while the kernel still tracks those of the pod that
// had the address, also with the same ports, and by a Service with masquerade. Nothing passes of theirs.
func TestSuccessorBesideConnectionsOfItsPredecessor(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, rememberingOneQueue)
		const port = 4020
		pod, server := n.a, n.outside.receive(t, ipv6, port)
		mustSync(t, s, Sets{})
		direct := pod.send(t, netip.AddrPortFrom(n.outside.addr(ipv6), port))
		vip := service(t, netip.AddrPortFrom(n.outside.addr(ipv6), port))
		mustShell(t, "nft -f - <<X\ntable inet sources {\n chain sources {\n type nat hook postrouting priority srcnat\n ct status dnat masquerade\n }\n}\nX")
		translated := pod.send(t, vip)
		own := pod.receive(t, ipv6, port+1)
		peer := n.outside.send(t, netip.AddrPortFrom(pod.addr(ipv6), port+1))
		exchangeOld(t, peer, own)

		l := listen(t)
		stale := Sets{Stale: []netip.Addr{pod.addr(ipv6)}}
		for _, client := range []net.Conn{direct, translated} {
			mustSync(t, s, Sets{})
			back := exchangeOld(t, client, server)
			mustSync(t, s, stale)
			if err := s.ForgetRenewed(t.Context(), stale.Stale); err != nil {
				t.Fatal(err)
			}
			if _, err := server.WriteToUDPAddrPort([]byte("late answer"), back); err != nil {
				t.Fatal(err)
			}
			if src, dst := addrs(l.next(t)); src != n.outside.addr(ipv6) || dst != pod.addr(ipv6) {
				t.Errorf("queued %v → %v, want an answer to the predecessor", src, dst)
			}
			say(t, client, "new") // by the entry of the predecessor
			a := l.next(t)
			if src, dst := addrs(a); src != pod.addr(ipv6) || dst != n.outside.addr(ipv6) {
				t.Errorf("queued %v → %v, want a packet of the successor", src, dst)
			}
			l.accept(t, a)
			hear(t, server)
			if _, err := server.WriteToUDPAddrPort([]byte("answer"), back); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			if m, err := client.Read(buf); err != nil || string(buf[:m]) != "answer" {
				t.Errorf("the successor hears %q, %v", buf[:m], err)
			}
		}
		say(t, peer, "to the predecessor")
		if src, dst := addrs(l.next(t)); src != n.outside.addr(ipv6) || dst != pod.addr(ipv6) {
			t.Errorf("queued %v → %v, want a packet to the predecessor", src, dst)
		}
		if renewed, err := s.Renewed(t.Context()); err != nil || len(renewed) != 1 {
			t.Errorf("renewed: %v, %v, want the last one", renewed, err)
		}
		if len(l.packets) > 0 {
			t.Errorf("%d more packets are queued", len(l.packets))
		}
	})
}
