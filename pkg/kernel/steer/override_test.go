package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

func mustOverride(t *testing.T, s *Steerer, o Overrides) {
	t.Helper()
	if err := s.Override(testContext(t), o); err != nil {
		t.Fatal(err)
	}
}

func TestOverridesDropOnlyWhatIsDenied(t *testing.T) {
	s, fake := newFake(t, nil)
	established := state(steertest.Established)
	for _, f := range []struct{ pod, peer, other netip.Addr }{{v4, peer4, v4b}, {v6, peer6, v6b}} {
		mustSync(t, s, Sets{Ingress: []netip.Addr{f.pod}, Egress: []netip.Addr{f.pod}, Pods: []netip.Addr{f.pod, f.other}})
		mustOverride(t, s, Overrides{Complete: true})
		pass := []traceCase{
			{"to the pod", pkt(f.peer, f.pod, forwarded, dport(80), established), accept},
			{"from the pod", pkt(f.pod, f.peer, forwarded, dport(80), established), accept},
		}
		checkTraces(t, fake, pass)
		class := packet.Class{Src: f.peer, Dst: f.pod, Proto: packet.UDP, Port: 80}
		mustOverride(t, s, Overrides{Denied: []packet.Class{class}})
		checkTraces(t, fake, []traceCase{
			{"of the class", pkt(f.peer, f.pod, forwarded, dport(80), established), drop},
			{"a reply of the class", pkt(f.pod, f.peer, forwarded, reply, sport(80), established), drop},
			{"to the node", pkt(f.peer, f.pod, toHost, dport(80), established), drop},
			{"one-way, accepted before", pkt(f.peer, f.pod, forwarded, dport(80), accepted), drop},
			{"a first packet", pkt(f.peer, f.pod, forwarded, dport(80)), queue},
			{"another port", pkt(f.peer, f.pod, forwarded, dport(81), established), accept},
			{"the other direction", pkt(f.pod, f.peer, forwarded, dport(80), established), accept},
			{"a reply of the other direction", pkt(f.peer, f.pod, forwarded, reply, sport(80), established), accept},
		})
		mustOverride(t, s, Overrides{Ended: []packet.Class{class}, Closed: []End{{Addr: f.pod}}})
		checkTraces(t, fake, []traceCase{
			{"egress", pkt(f.pod, f.peer, forwarded, dport(80), established), drop},
			{"a reply of egress", pkt(f.peer, f.pod, forwarded, reply, sport(80), established), drop},
			{"ingress", pkt(f.peer, f.pod, forwarded, dport(80), established), accept},
			{"a first packet of egress", pkt(f.pod, f.peer, forwarded, dport(80)), queue},
			{"with itself, by a Service", pkt(f.pod, f.pod, forwarded, dport(80), established), accept},
			{"to the node of a closed pod", pkt(f.pod, f.peer, toHost, dport(80), established), accept},
			{"the node answers", pkt(f.peer, f.pod, reply, fromNode, established), accept},
		})
		mustOverride(t, s, Overrides{Opened: []End{{Addr: f.pod}}, Closed: []End{{Addr: f.pod, Ingress: true}}})
		checkTraces(t, fake, []traceCase{
			{"only egress", pkt(f.pod, f.peer, forwarded, dport(80), established), accept},
			{"closed ingress", pkt(f.peer, f.pod, forwarded, dport(80), established), drop},
			{"a reply of closed ingress", pkt(f.pod, f.peer, forwarded, reply, sport(80), established), drop},
			{"the node probes", pkt(f.peer, f.pod, fromNode, dport(80), established), accept},
		})
		mustOverride(t, s, Overrides{Opened: []End{{Addr: f.pod, Ingress: true}}})
		checkTraces(t, fake, pass)
		for _, set := range overrideSets() {
			if n := len(fake.Table.Sets[set.Name].Elements); n != 0 {
				t.Errorf("%d elements of %s are left", n, set.Name)
			}
		}
	}
}

// Packets of ends whose marks may be wrong are decided, in both directions, whether their connections are
// accepted or blocked. Others' marks decide.
func TestEndsAreDecidedAgain(t *testing.T) {
	blocked := func(p *steertest.Packet) { p.CTMark, p.Confirmed = testConfig().Mark|0x800, true }
	established := state(steertest.Established)
	related := func(p *steertest.Packet) { p.State = steertest.Related }
	for _, f := range []struct {
		pod, peer netip.Addr
		icmp      string
	}{{v4, peer4, "icmp"}, {v6, peer6, "ipv6-icmp"}} {
		s, fake := newFake(t, nil)
		kernel := s.kernel.(*fakeKernel)
		mustSync(t, s, Sets{Pods: []netip.Addr{f.pod}}) // no policy selects it
		from, to := End{Addr: f.pod}, End{Addr: f.pod, Ingress: true}
		opened := func(edits ...func(*steertest.Packet)) steertest.Packet {
			return pkt(f.pod, f.peer, append(edits, forwarded, established)...)
		}
		answered := func(edits ...func(*steertest.Packet)) steertest.Packet {
			return pkt(f.peer, f.pod, append(edits, forwarded, reply, established)...)
		}
		marksDecide := []traceCase{
			{"accepted", opened(), accept},
			{"accepted, a reply", answered(), accept},
			{"blocked", opened(blocked), drop},
			{"blocked, a reply", answered(blocked), drop},
			{"blocked, to the node", opened(blocked, toHost), drop},
		}
		checkTraces(t, fake, marksDecide)
		mustOverride(t, s, Overrides{Again: []End{from}})
		others := []traceCase{
			{"the other direction", pkt(f.peer, f.pod, forwarded, established), accept},
			{"the other direction, blocked", pkt(f.peer, f.pod, forwarded, established, blocked), drop},
			{"an answer of the node", pkt(f.peer, f.pod, reply, fromNode, established), accept},
			{"an answer of the node, blocked", pkt(f.peer, f.pod, reply, fromNode, established, blocked), drop},
			{"an ICMP error", pkt(f.peer, f.pod, forwarded, reply, related, proto(f.icmp)), accept},
			{"an ICMP error about a blocked one", pkt(f.peer, f.pod, forwarded, reply, related, blocked, proto(f.icmp)), drop},
		}
		again := []traceCase{
			{"accepted", opened(), queue},
			{"accepted, a reply", answered(), queue},
			{"accepted, one-way", pkt(f.pod, f.peer, forwarded, accepted), queue},
			{"accepted, to the node", opened(toHost), queue},
		}
		checkTraces(t, fake, append(append(again, others...), []traceCase{
			{"blocked", opened(blocked), queue},
			{"blocked, a reply", answered(blocked), queue},
			{"blocked, one-way", pkt(f.pod, f.peer, forwarded, blocked), queue},
			{"blocked, to the node", opened(blocked, toHost), queue},
		}...))
		for _, tt := range []struct {
			packet steertest.Packet
			mark   uint32
		}{{opened(blocked), testConfig().Mark | 0x800}, {answered(blocked), 0x800}} {
			got, err := steertest.Trace(fake, tt.packet, func(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
				if p.Mark != tt.mark {
					t.Errorf("%+v is queued with %#x, want %#x", tt.packet, p.Mark, tt.mark)
				}
				return accept, testConfig().Mark
			})
			if err != nil || got.Verdict != accept || got.CTMark&0x800 == 0 {
				t.Errorf("%v: %+v, want accept by a verdict, and the connection blocked for others", err, got)
			}
		}
		kernel.hasFlowtables = true
		mustOverride(t, s, Overrides{Marked: []End{from}})
		checkTraces(t, fake, marksDecide)
		mustOverride(t, s, Overrides{Again: []End{from}})
		checkTraces(t, fake, append(append(again, others...), marksDecide[2:]...)) // a flowtable might take a blocked one
		mustOverride(t, s, Overrides{Closed: []End{{Addr: v4b}}})                  // a change of another pod
		checkTraces(t, fake, append(append(again, others...), marksDecide[2:]...))
		mustOverride(t, s, Overrides{Opened: []End{{Addr: v4b}}})
		mustOverride(t, s, Overrides{Marked: []End{from}, Again: []End{to, {Link: "cali1"}}})
		checkTraces(t, fake, []traceCase{
			{"to the pod", pkt(f.peer, f.pod, forwarded, established), queue},
			{"from the pod", opened(), accept},
			{"arriving on the link", pkt(f.peer, f.peer, arrivingOn("cali1"), established), queue},
			{"leaving by the link", pkt(f.peer, f.peer, arrivingOn("eth0"), leavingBy("cali1"), reply, established), queue},
			{"another link", pkt(f.peer, f.peer, arrivingOn("eth0"), leavingBy("cali2"), established), accept},
		})
		mustOverride(t, s, Overrides{Marked: []End{to, {Link: "cali1"}}})
		checkTraces(t, fake, marksDecide)
	}
}

// Overrides survive a repair of the table and elements that are gone, and nothing is written beside another
// agent.
func TestOverridesAreRestored(t *testing.T) {
	s, fake := newFake(t, nil)
	if err := s.Override(testContext(t), Overrides{Closed: []End{{Addr: v4}}}); !errors.Is(err, errNotInPlace) {
		t.Errorf("before the table exists: %v", err)
	}
	mustSync(t, s, Sets{})
	mustOverride(t, s, Overrides{Complete: true})
	mustOverride(t, s, Overrides{Closed: []End{{Addr: v4}}})
	closed := familyName(closedFromSet, false)
	fake.Table.Sets[closed].Elements = nil // timed out
	mustOverride(t, s, Overrides{Opened: []End{{Addr: v4}}, Closed: []End{{Addr: v6, Ingress: true}}})
	keys := func(set string) (keys []string) {
		for _, e := range fake.Table.Sets[set].Elements {
			keys = append(keys, strings.Join(e.Key, " . "))
		}
		return keys
	}
	check := func() {
		t.Helper()
		for set, want := range map[string][]string{closed: nil, familyName(closedToSet, true): {v6.String()}, overridesSet: {"ipv6"}} {
			if got := keys(set); !slices.Equal(got, want) {
				t.Errorf("%s has %v, want %v", set, got, want)
			}
		}
	}
	check()
	fake.Table.Sets[closed].Elements = []*knftables.Element{{Set: closed, Key: []string{v4b.String()}}}
	fake.Table.Sets[familyName(closedToSet, true)].Elements = nil
	s.observed, s.flush = nil, true // another process has changed the table
	mustSync(t, s, Sets{})
	check()
}

// What an earlier agent has overridden stays so until the marks of a new one are complete, also while it
// changes its own overrides, but blocked connections stay blocked.
func TestOverridesOfAnEarlierAgent(t *testing.T) {
	for _, f := range []struct{ pod, peer, other netip.Addr }{{v4, peer4, v4b}, {v6, peer6, v6b}} {
		earlier, fake := newFake(t, nil)
		sets := Sets{Ingress: []netip.Addr{f.pod, f.other}, Egress: []netip.Addr{f.pod, f.other}, Pods: []netip.Addr{f.pod, f.other}}
		mustSync(t, earlier, sets)
		mustOverride(t, earlier, Overrides{
			Denied: []packet.Class{{Src: f.pod, Dst: f.peer, Proto: packet.UDP, Port: 53}},
			Closed: []End{{Addr: f.other}}, Again: []End{{Addr: f.pod, Ingress: true}},
		})
		established := state(steertest.Established)
		blocked := pkt(f.peer, f.pod, forwarded, established, marked(0, 0x800))
		packets := []steertest.Packet{pkt(f.pod, f.peer, forwarded, dport(53), established), pkt(f.other, f.peer, forwarded, established), pkt(f.peer, f.pod, forwarded, established), blocked}
		check := func(want ...steertest.Verdict) {
			t.Helper()
			for i, p := range packets {
				checkTraces(t, fake, []traceCase{{fmt.Sprintf("%v, packet %d", f.pod, i), p, want[i]}})
			}
		}
		check(drop, drop, queue, queue)
		s := newOn(t, fake, func(c *Config) { c.Queue = 101 })
		if err := s.Override(testContext(t), Overrides{Complete: true}); !errors.Is(err, errNotInPlace) {
			t.Errorf("before the table is in place: %v", err)
		}
		mustSync(t, s, sets)
		check(drop, drop, queue, drop)
		for _, own := range []Overrides{{Closed: []End{{Addr: f.peer.Next()}}}, {Opened: []End{{Addr: f.peer.Next()}}}} {
			mustOverride(t, s, own)
			check(drop, drop, queue, drop)
		}
		mustOverride(t, s, Overrides{Complete: true})
		check(accept, accept, accept, drop)
	}
}

// What is denied while an agent starts is dropped as soon as the agent has the table, in the same transaction.
func TestOverridesBeforeTheTable(t *testing.T) {
	earlier, used := newFake(t, nil)
	mustSync(t, earlier, Sets{})
	for name, fake := range map[string]*knftables.Fake{
		"no table":                    knftables.NewFake(knftables.InetFamily, TableName),
		"a table of an earlier agent": used,
	} {
		t.Run(name, func(t *testing.T) {
			s := newOn(t, fake, nil)
			if err := s.Override(testContext(t), Overrides{Closed: []End{{Addr: v4}}}); !errors.Is(err, errNotInPlace) {
				t.Fatalf("before the table is in place: %v", err)
			}
			mustSync(t, s, Sets{})
			if got := fake.Table.Sets[familyName(closedFromSet, false)].Elements; len(got) != 1 || got[0].Key[0] != v4.String() {
				t.Errorf("closed are %v, want %v", got, v4)
			}
		})
	}
}

// The kernel has the elements as written, thousands in one transaction.
func TestKernelOverrides(t *testing.T) {
	newNode(t)
	s := newReal(t, nil)
	mustSync(t, s, Sets{})
	var all []packet.Class
	for i := range 8192 {
		all = append(all, packet.Class{Src: v6, Dst: netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), Proto: packet.UDP, Port: 53})
	}
	mustOverride(t, s, Overrides{Denied: all, Closed: []End{{Addr: v4}}, Again: []End{{Addr: v6}, {Addr: v4, Ingress: true}, {Link: "cali1"}}})
	want := fmt.Sprintf("%s . %s . udp . 53", all[1].Src, all[1].Dst)
	for range 2 {
		if list := listTable(t); strings.Count(list, " . udp . 53") != len(all) || !strings.Contains(list, want) {
			t.Errorf("%d elements of %d, or not %s", strings.Count(list, " . udp . "), len(all), want)
		}
		// What is gone is no error, and the rest stays.
		if out, err := exec.Command("nft", "flush", "set", "inet", TableName, "closed-from-v4").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		mustOverride(t, s, Overrides{Opened: []End{{Addr: v4}}})
	}
	out, err := exec.Command("nft", "list", "set", "inet", TableName, reopeningSet).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ipv4") || !strings.Contains(string(out), "ipv6") {
		t.Errorf("blocked connections are not decided again: %v, %s", err, out)
	}
	mustOverride(t, s, Overrides{Ended: all})
	if list := listTable(t); strings.Contains(list, " . udp . ") {
		t.Error("elements are left")
	}
}

func sport(port uint16) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.SrcPort = port }
}

// accepted has the mark of accepted connections.
func accepted(p *steertest.Packet) { p.CTMark, p.Confirmed = testConfig().Mark, true }
