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

func blocking(c *Config) { c.BlockMark = 0x800 }

func mustOverride(t *testing.T, s *Steerer, o Overrides) {
	t.Helper()
	if err := s.Override(testContext(t), o); err != nil {
		t.Fatal(err)
	}
}

func TestOverridesDropOnlyWhatIsDenied(t *testing.T) {
	s, fake := newFake(t, blocking)
	established := state(steertest.Established)
	for _, f := range []struct{ pod, peer, other netip.Addr }{{v4, peer4, v4b}, {v6, peer6, v6b}} {
		mustSync(t, s, Sets{Ingress: []netip.Addr{f.pod}, Egress: []netip.Addr{f.pod}, Pods: []netip.Addr{f.pod, f.other}})
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
		mustOverride(t, s, Overrides{Ended: []packet.Class{class}, ClosedFrom: []netip.Addr{f.pod}})
		checkTraces(t, fake, []traceCase{
			{"egress", pkt(f.pod, f.peer, forwarded, dport(80), established), drop},
			{"a reply of egress", pkt(f.peer, f.pod, forwarded, reply, sport(80), established), drop},
			{"ingress", pkt(f.peer, f.pod, forwarded, dport(80), established), accept},
			{"a first packet of egress", pkt(f.pod, f.peer, forwarded, dport(80)), queue},
			{"with itself, by a Service", pkt(f.pod, f.pod, forwarded, dport(80), established), accept},
			{"to the node of a closed pod", pkt(f.pod, f.peer, toHost, dport(80), established), accept},
			{"the node answers", pkt(f.peer, f.pod, reply, fromNode, established), accept},
		})
		mustOverride(t, s, Overrides{OpenedFrom: []netip.Addr{f.pod}, ClosedTo: []netip.Addr{f.pod}})
		checkTraces(t, fake, []traceCase{
			{"only egress", pkt(f.pod, f.peer, forwarded, dport(80), established), accept},
			{"closed ingress", pkt(f.peer, f.pod, forwarded, dport(80), established), drop},
			{"a reply of closed ingress", pkt(f.pod, f.peer, forwarded, reply, sport(80), established), drop},
			{"the node probes", pkt(f.peer, f.pod, fromNode, dport(80), established), accept},
		})
		mustOverride(t, s, Overrides{OpenedTo: []netip.Addr{f.pod}})
		checkTraces(t, fake, pass)
		for _, set := range overrideSets() {
			if n := len(fake.Table.Sets[set.Name].Elements); n != 0 {
				t.Errorf("%d elements of %s are left", n, set.Name)
			}
		}
	}
}

// Overrides survive a repair of the table and elements that are gone, and nothing is written beside another
// agent.
func TestOverridesAreRestored(t *testing.T) {
	s, fake := newFake(t, blocking)
	if err := s.Override(testContext(t), Overrides{ClosedFrom: []netip.Addr{v4}}); !errors.Is(err, errNotInPlace) {
		t.Errorf("before the table exists: %v", err)
	}
	mustSync(t, s, Sets{})
	mustOverride(t, s, Overrides{ClosedFrom: []netip.Addr{v4}})
	closed := familyName(closedFromSet, false)
	fake.Table.Sets[closed].Elements = nil // timed out
	mustOverride(t, s, Overrides{OpenedFrom: []netip.Addr{v4}, ClosedTo: []netip.Addr{v6}})
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

// The kernel has the elements as written, thousands in one transaction.
func TestKernelOverrides(t *testing.T) {
	newNode(t)
	s := newReal(t, blocking)
	mustSync(t, s, Sets{})
	var all []packet.Class
	for i := range 8192 {
		all = append(all, packet.Class{Src: v6, Dst: netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), Proto: packet.UDP, Port: 53})
	}
	mustOverride(t, s, Overrides{Denied: all, ClosedFrom: []netip.Addr{v4}})
	want := fmt.Sprintf("%s . %s . udp . 53", all[1].Src, all[1].Dst)
	for range 2 {
		if list := listTable(t); strings.Count(list, " . udp . 53") != len(all) || !strings.Contains(list, want) {
			t.Errorf("%d elements of %d, or not %s", strings.Count(list, " . udp . "), len(all), want)
		}
		// What is gone is no error, and the rest stays.
		if out, err := exec.Command("nft", "flush", "set", "inet", TableName, "closed-from-v4").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		mustOverride(t, s, Overrides{OpenedFrom: []netip.Addr{v4}})
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
