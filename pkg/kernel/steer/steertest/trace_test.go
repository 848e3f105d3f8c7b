package steertest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// table returns a table with two base chains at postrouting. The first one has these rules.
func table(t *testing.T, rules ...rule.Rule) *knftables.Fake {
	t.Helper()
	noSCTP := rule.Rule{rule.L4Proto.Is(rule.SCTP), rule.Drop}
	Learn(append(rules, noSCTP)...)
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
		tx.Add(&knftables.Rule{Chain: "first", Rule: r.String()})
	}
	tx.Add(&knftables.Rule{Chain: "second", Rule: noSCTP.String()})
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	return fake
}

var udp = Packet{
	Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), Proto: "udp",
}

func TestVerdicts(t *testing.T) {
	prefix := func(text string) rule.Value { return rule.Prefix(netip.MustParsePrefix(text)) }
	for _, tt := range []struct {
		rule rule.Rule
		want Verdict
	}{
		{rule.Rule{rule.Accept}, Accept},
		{rule.Rule{rule.Drop}, Drop},
		{rule.Rule{rule.Return}, Accept},
		{rule.Rule{rule.Jump("sub")}, Accept},
		{rule.Rule{rule.Goto("sub")}, Accept},
		{rule.Rule{rule.Queue{First: 1, Count: 2}}, Queue},
		{rule.Rule{rule.RejectWithICMP}, Reject},
		{rule.Rule{rule.IPv4.Saddr.Is(prefix("192.0.2.0/25")), rule.Drop}, Drop},
		{rule.Rule{rule.IPv4.Saddr.Is(prefix("192.0.2.0/24")), rule.Drop}, Drop},
		{rule.Rule{rule.IPv4.Saddr.Is(prefix("192.0.3.0/24")), rule.Drop}, Accept},
		{rule.Rule{rule.IPv4.Saddr.IsNot(prefix("192.0.2.0/25")), rule.Drop}, Accept},
		{rule.Rule{rule.IPv6.Saddr.IsNot(prefix("::/1")), rule.Drop}, Accept},
		{rule.Rule{rule.IPv4.Daddr.OneOf(prefix("192.0.2.2/32"), prefix("192.0.2.9/32")), rule.Drop}, Drop},
		{rule.Rule{rule.IPv4.Daddr.OneOf(prefix("192.0.2.0/31"), prefix("192.0.2.9/32")), rule.Drop}, Accept},
		{rule.Rule{rule.IPv4.Daddr.OneOf(prefix("192.0.2.2/31"), prefix("192.0.2.9/32")), rule.Drop}, Drop},
		{rule.Rule{rule.CTState.Any(rule.New), rule.Drop}, Drop},
		{rule.Rule{rule.CTStatus.Any(rule.DNAT), rule.Drop}, Accept},
		{rule.Rule{rule.FibDaddrType.IsNot(rule.Local), rule.Drop}, Drop},
		{rule.Rule{rule.FibDaddrType.Is(rule.Unicast), rule.Drop}, Drop},
		{rule.Rule{rule.L4Proto.OneOf(rule.TCP, rule.UDP), rule.Drop}, Drop},
		{rule.Rule{rule.L4Proto.OneOf(rule.TCP, rule.SCTP), rule.Drop}, Accept},
		{rule.Rule{rule.L4Proto.NoneOf(rule.TCP, rule.SCTP), rule.Drop}, Drop},
	} {
		t.Run(tt.rule.String(), func(t *testing.T) {
			got, err := Trace(table(t, tt.rule), udp, nil)
			if err != nil || got.Verdict != tt.want {
				t.Errorf("%v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestAcceptedPacketContinuesWithNextBaseChain(t *testing.T) {
	for _, s := range []rule.Statement{rule.Accept, rule.Queue{First: 1, Count: 1}} {
		t.Run(s.String(), func(t *testing.T) {
			p := udp
			p.Proto = "sctp"
			got, err := Trace(table(t, rule.Rule{s}), p, func(Packet, string) (Verdict, uint32) { return Accept, 0 })
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

func TestUnknownRuleIsAnError(t *testing.T) {
	fake := table(t)
	tx := fake.NewTransaction()
	tx.Add(&knftables.Rule{Chain: "first", Rule: "ip ttl 1 drop"})
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if _, err := Trace(fake, udp, nil); err == nil || !strings.Contains(err.Error(), "chain first: rule") {
		t.Errorf("error %v", err)
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
