package steertest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"
)

// table returns a table with two base chains at postrouting. The first one has these rules.
func table(t *testing.T, rules ...string) *knftables.Fake {
	t.Helper()
	fake := knftables.NewFake(knftables.InetFamily, "t")
	tx := fake.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "sub"})
	for name, priority := range map[string]knftables.BaseChainPriority{"first": "srcnat-5", "second": "srcnat"} {
		tx.Add(&knftables.Chain{
			Name:     name,
			Type:     knftables.PtrTo(knftables.FilterType),
			Hook:     knftables.PtrTo(knftables.PostroutingHook),
			Priority: &priority,
		})
	}
	for _, r := range rules {
		tx.Add(&knftables.Rule{Chain: "first", Rule: r})
	}
	tx.Add(&knftables.Rule{Chain: "second", Rule: "meta l4proto sctp drop"})
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	return fake
}

var udp = Packet{
	Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Proto: "udp",
}

func TestVerdicts(t *testing.T) {
	for _, tt := range []struct {
		rule string
		want Verdict
	}{
		{"accept", Accept},
		{"drop", Drop},
		{"return", Accept},
		{"jump sub drop", Drop},
		{"goto sub", Accept},
		{"queue flags fanout to 1-2", Queue},
		{"ip saddr 192.0.2.0/24 drop", Drop},
		{"ip saddr != 192.0.2.0/24 drop", Accept},
		{"ip6 saddr != ::/0 drop", Accept},
		{"ip daddr { 192.0.2.9, 192.0.2.2 } drop", Drop},
		{"ct state new drop", Drop},
		{"ct status dnat drop", Accept},
		{"fib daddr type != local drop", Drop},
		{"fib daddr type unicast drop", Drop},
		{"meta l4proto { tcp, udp } drop", Drop},
		{"meta l4proto { tcp, sctp } drop", Accept},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			got, err := Trace(table(t, tt.rule), udp, nil)
			if err != nil || got.Verdict != tt.want {
				t.Errorf("%v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestAcceptedPacketContinuesWithNextBaseChain(t *testing.T) {
	for _, rule := range []string{"accept", "queue to 1"} {
		t.Run(rule, func(t *testing.T) {
			p := udp
			p.Proto = "sctp"
			got, err := Trace(table(t, rule), p, func(Packet, string) (Verdict, uint32) { return Accept, 0 })
			if err != nil || got.Verdict != Drop {
				t.Errorf("%v, %v, want the second chain's drop", got, err)
			}
		})
	}
}

func TestHooksOfPacket(t *testing.T) {
	forwarded, toHost := udp, udp
	forwarded.Forwarded, toHost.ToHost = true, true
	for _, tt := range []struct {
		hook   knftables.BaseChainHook
		packet Packet
		want   Verdict
	}{
		{knftables.PreroutingHook, forwarded, Drop},
		{knftables.PreroutingHook, toHost, Drop},
		{knftables.PreroutingHook, udp, Accept},
		{knftables.InputHook, toHost, Drop},
		{knftables.InputHook, forwarded, Accept},
		{knftables.PostroutingHook, toHost, Accept},
		{knftables.PostroutingHook, forwarded, Drop},
		{knftables.PostroutingHook, udp, Drop},
	} {
		t.Run(fmt.Sprintf("%s, forwarded %v, to the host %v", tt.hook, tt.packet.Forwarded, tt.packet.ToHost), func(t *testing.T) {
			fake := knftables.NewFake(knftables.InetFamily, "t")
			tx := fake.NewTransaction()
			tx.Add(&knftables.Table{})
			tx.Add(&knftables.Chain{
				Name: "base", Type: knftables.PtrTo(knftables.FilterType), Hook: &tt.hook,
				Priority: knftables.PtrTo(knftables.FilterPriority),
			})
			tx.Add(&knftables.Rule{Chain: "base", Rule: "drop"})
			if err := fake.Run(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			got, err := Trace(fake, tt.packet, nil)
			if err != nil || got.Verdict != tt.want {
				t.Errorf("%+v: %v, %v, want %s", tt.packet, got, err, tt.want)
			}
		})
	}
}

func TestUnknownSyntaxIsAnError(t *testing.T) {
	for _, rule := range []string{"tcp dport 80 accept", "ip ttl 1 drop", "ct zone 1 drop", "ip saddr { 192.0.2.9", "meta mark & x != 0"} {
		if _, err := Trace(table(t, rule), udp, nil); err == nil || !strings.Contains(err.Error(), "chain first: rule") {
			t.Errorf("%q: error %v", rule, err)
		}
	}
}

func TestNoTableAcceptsEverything(t *testing.T) {
	got, err := Trace(knftables.NewFake(knftables.InetFamily, "t"), udp, nil)
	if err != nil || got.Verdict != Accept {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestPacketsShowWhatIsSet(t *testing.T) {
	p := Packet{Src: netip.MustParseAddr("192.0.2.1"), Proto: "udp", ToHost: true}
	if got, want := fmt.Sprintf("%+v", p), "{Src:192.0.2.1 Proto:udp ToHost:true}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
