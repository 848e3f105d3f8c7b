package domains

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// allows returns a snapshot in which the pod may reach only these domains.
func allows(domains ...policy.Domain) *policy.Snapshot {
	pod := &policy.Endpoint{Namespace: "x", Name: "pod", Egress: &policy.Chain{Rules: []policy.Rule{
		{Tier: policy.AdminTier, Action: policy.Allow, AnyPort: true, Peers: []policy.Peer{{Domains: domains}}},
		{Tier: policy.AdminTier, AnyPeer: true, AnyPort: true},
	}}}
	known := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{ip(podAt): pod})
	return policy.New(policy.Model{Endpoints: known, Local: policy.NewLocal(known, []netip.Addr{ip(podAt)})})
}

func only(name string) policy.Domain {
	below, ok := strings.CutPrefix(name, "*.")
	return policy.Domain{Name: below, Below: ok}
}

// why returns why the pod's packet to addr is denied now.
func (f *fixture) why(s *policy.Snapshot, addr string) string {
	q := policy.Query{Packet: packet.Packet{Proto: packet.TCP, Src: netip.AddrPortFrom(ip(podAt), 4000), Dst: netip.AddrPortFrom(ip(addr), 443)}}
	return f.Why(s, q, f.now)
}

// TestDenialsSayWhy: what a pod has asked for, and what became of it.
func TestDenialsSayWhy(t *testing.T) {
	const peer = "192.0.2.1"
	domain := only("example.org")
	for _, tc := range []struct {
		title   string
		domains []policy.Domain
		before  func(*fixture)
		want    string
	}{
		{"never asked", []policy.Domain{domain}, func(*fixture) {}, "example.org was never asked of the trusted resolver by this pod (since 2026-01-01T00:00:00Z)"},
		{"never asked for any", []policy.Domain{domain, only("a.test")}, func(*fixture) {}, "example.org and one other name were never asked of the trusted resolver by this pod (since 2026-01-01T00:00:00Z)"},
		{"never asked for any of several", []policy.Domain{only("*.example.org"), domain, only("a.test")}, func(*fixture) {}, "*.example.org and 2 other names were never asked of the trusted resolver by this pod (since 2026-01-01T00:00:00Z)"},
		{"asked for another name", []policy.Domain{domain}, func(f *fixture) { f.learns("www.example.org", at("www.example.org", peer, 300)) }, "example.org was never asked of the trusted resolver by this pod (since 2026-01-01T00:00:00Z)"},
		{"no answer yet", []policy.Domain{domain}, func(f *fixture) {
			f.asks("example.org", typeA)
			f.now = f.now.Add(3 * time.Second)
		}, "example.org was asked of the trusted resolver 3 s ago and has no answer yet"},
		{"a forged answer", []policy.Domain{domain}, func(f *fixture) {
			f.asks("example.org", typeA)
			f.Observe(udp(dns, podAt+":4000", reply(8, "example.org", typeA, at("example.org", peer, 300))))
		}, "example.org was asked of the trusted resolver 0 s ago and has no answer yet"},
		{"a negative answer", []policy.Domain{domain}, func(f *fixture) {
			f.asks("example.org", typeA)
			m := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: 7, Response: true, RCode: dnsmessage.RCodeNameError},
				Questions: []dnsmessage.Question{{Name: named("example.org"), Type: typeA, Class: dnsmessage.ClassINET}},
			}
			f.Observe(udp(dns, podAt+":4000", pack(m)))
		}, "example.org was asked of the trusted resolver 0 s ago, and the answer has no address"},
		{"no address of the family", []policy.Domain{domain}, func(f *fixture) { f.learns("example.org") }, "example.org was asked of the trusted resolver 0 s ago, and the answer has no address"},
		{"another address", []policy.Domain{domain}, func(f *fixture) {
			f.learns("example.org", at("example.org", "192.0.2.2", 300))
			f.learns("example.org") // of the other family
		}, "the answers for example.org have other addresses"},
		{"another address, long ago", []policy.Domain{domain}, func(f *fixture) {
			f.learns("example.org", at("example.org", "192.0.2.2", 300))
			f.now = f.now.Add(time.Hour)
			f.learns("a.test", at("a.test", "192.0.2.2", 300))
		}, "the answers for example.org had other addresses"},
		{"expired", []policy.Domain{domain}, func(f *fixture) {
			f.learns("example.org", at("example.org", peer, 300))
			f.now = f.now.Add(300*time.Second + Grace + 40*time.Second)
		}, "example.org expired 40 s ago"},
		{"expired below", []policy.Domain{only("a.test"), only("*.example.org")}, func(f *fixture) {
			f.learns("www.example.org", at("www.example.org", peer, 0))
			f.now = f.now.Add(Grace + 3*time.Minute)
		}, "www.example.org expired 3 min ago"},
		{"expired twice", []policy.Domain{only("*.example.org")}, func(f *fixture) {
			f.learns("a.example.org", at("a.example.org", peer, 0))
			f.learns("b.example.org", at("b.example.org", peer, 60))
			f.now = f.now.Add(Grace + 5*time.Hour + time.Minute)
		}, "b.example.org expired 5 h ago"},
		{"expired and asked again", []policy.Domain{domain}, func(f *fixture) {
			f.learns("example.org", at("example.org", peer, 0))
			f.now = f.now.Add(Grace)
			f.expect(peer, "")
			f.learns("example.org", at("example.org", peer, 0))
		}, ""},
		{"forgotten", []policy.Domain{domain}, func(f *fixture) {
			f.learns("example.org", at("example.org", peer, 300))
			for i := range MaxAddresses {
				f.known("a.test", fmt.Sprintf("198.18.%d.%d", i/250, i%250), time.Hour)
			}
			f.now = f.now.Add(time.Second)
		}, "example.org was forgotten 1 s ago, because this pod knows too many addresses"},
		{"odd bytes", []policy.Domain{only("*.example.org")}, func(f *fixture) {
			f.known("\x1b["+strings.Repeat("a", 200)+".example.org", peer, time.Second)
			f.now = f.now.Add(2 * time.Second)
		}, `\027\091` + strings.Repeat("a", 92) + "... expired 1 s ago"},
		{"too much was asked since", []policy.Domain{domain}, func(f *fixture) {
			f.asks("example.org", typeA)
			f.now = f.now.Add(time.Minute)
			for i := range maxAsked {
				f.asks(fmt.Sprintf("n%d.test", i), typeA)
			}
			f.now = f.now.Add(time.Minute)
		}, "example.org was never asked of the trusted resolver by this pod (since 2026-01-01T00:00:00Z)"},
	} {
		t.Run(tc.title, func(t *testing.T) {
			f := newFixture(t)
			tc.before(f)
			if got := f.why(allows(tc.domains...), peer); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestWhyNamesAreRefused(t *testing.T) {
	f := newFixture(t)
	s := allows(only("example.org"))
	if got := f.why(s, "127.0.0.1"); got != "" {
		t.Errorf("an address that no name may have: %q", got)
	}
	f.known("example.org", "127.0.0.1", time.Hour)
	if got := f.why(s, "127.0.0.1"); got != refused {
		t.Errorf("got %q, want %q", got, refused)
	}
}

// TestHistoryIsBounded: the oldest is forgotten, and so is when it was asked.
func TestHistoryIsBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := newHistory(now)
	for i := range 2 * maxAsked {
		now = now.Add(time.Second)
		h.asked(fmt.Sprint(i), now)
	}
	if _, ok := h.names.get(fmt.Sprint(maxAsked)); !ok || h.names.len() != maxAsked || h.since != now.Add(-maxAsked*time.Second) {
		t.Errorf("%d names since %v", h.names.len(), h.since)
	}

	k := newKnown(func() {})
	for i := range 3 * maxPast {
		now = now.Add(time.Hour)
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		k.learn("a.test", addr, now, now.Add(time.Minute))
	}
	if k.past.len() != maxPast {
		t.Errorf("%d names that have ended are remembered", k.past.len())
	}
}

func TestMatcherAgreesWithDomains(t *testing.T) {
	domains := []policy.Domain{only("a.test"), only("*.b.test"), only("*.test.org"), only("*.x")}
	m := newMatcher(domains)
	for _, name := range []string{"", ".", "a.test", "b.test", "a.b.test", "a.a.b.test", "ab.test", ".b.test", "..b.test", "test.org", "a.test.org", "x", ".x", "a.x", "a.test.", "b.test.x"} {
		want := slices.ContainsFunc(domains, func(d policy.Domain) bool { return d.Matches(name) })
		if got := m.has(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
