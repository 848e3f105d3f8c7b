package policy

import (
	"net/netip"
	"slices"
	"testing"
)

func TestScopeOf(t *testing.T) {
	addr := netip.MustParseAddr
	s := snapshot(nil, nil) // 10.0.0.0/24 is the range of this node, 10.0.1.3 a pod of another one
	s.m.Hosts = map[netip.Addr]*Host{addr("192.168.0.1"): {}, addr("fd00:f::1"): {}}
	s.m.PodRanges = NewPodRanges([]netip.Prefix{netip.MustParsePrefix("10.0.2.0/24"), netip.MustParsePrefix("fd00:2::/64")}, nil)
	for want, texts := range map[scope][]string{
		allNames: {
			"192.0.2.7", "2001:db8::7", "10.99.0.1", "172.16.0.1", "192.168.0.2", "100.64.0.1", "fd99::1",
			"168.63.129.15", "100.100.100.201", "fd00:ec3::254", "fec0::1", "240.0.0.1", "1.0.0.0",
			"64:ff9b::192.0.2.7", "64:ff9b::10.99.0.1", "64:ff9b:1::192.0.2.7", "2002:c000:207::1",
		},
		clusterNames: {
			"10.0.0.1", "10.0.1.3", "10.0.0.200", "10.0.2.77", "fd00:2::77", "192.168.0.1", "fd00:f::1",
			"64:ff9b::10.0.1.3", "64:ff9b::10.0.2.77", "64:ff9b:1::192.168.0.1", "2002:a00:103::1", "::10.0.1.3", "::ffff:0:10.0.1.3",
		},
		noNames: {
			"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.255", "169.254.169.254", "169.254.20.10", "169.254.170.23",
			"224.0.0.251", "239.255.255.250", "255.255.255.255", "100.100.100.200", "168.63.129.16", "192.0.0.192",
			"::", "::1", "fe80::1", "fe80::a9fe:a9fe", "febf::1", "ff02::fb", "ff0e::1",
			"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:100::100:200", "fd00:a9fe:a9fe::1", "fd00:42::42",
			"64:ff9b::169.254.169.254", "64:ff9b::127.0.0.1", "64:ff9b::0.0.0.0", "64:ff9b::168.63.129.16", "64:ff9b:1::169.254.169.254",
			"::169.254.169.254", "::127.0.0.1", "::ffff:0:169.254.169.254", "2002:a9fe:a9fe::1", "2002:7f00:1::",
		},
	} {
		for _, text := range texts {
			if got := s.scopeOf(addr(text), false); got != want {
				t.Errorf("%s: got scope %d, want %d", text, got, want)
			}
			if got := s.scopeOf(addr(text), true); got != min(want, clusterNames) {
				t.Errorf("%s, of the node itself: got scope %d", text, got)
			}
		}
	}
}

// anyAddress gives every address the same names.
type anyAddress struct{ names *Names }

func (n anyAddress) Names(_, _ netip.Addr) *Names { return n.names }

// TestNamesMatchNoPods allows pod a to reach domain names and nothing else. The owner of each
// address is the one known when the packet is evaluated.
func TestNamesMatchNoPods(t *testing.T) {
	const denied, allowed = "denied", "allowed"
	named := Peer{Domains: []Domain{{Name: "a.test"}, {Name: "local", Below: true}}}
	external, service, both := Names{"a.test"}, Names{"b.x.svc.cluster.local"}, Names{"a.test", "b.x.svc.cluster.local"}
	becomes := func(m func(*Model)) func(*Snapshot) { return func(s *Snapshot) { m(&s.m) } }
	pod := becomes(func(m *Model) {
		edit := m.Endpoints.Edit()
		edit.Set(addrWeb, &Endpoint{Version: NewVersion(), Namespace: "y", Name: "new"})
		m.Endpoints = edit.Done()
	})
	node := becomes(func(m *Model) { m.Hosts = map[netip.Addr]*Host{addrWeb: {}} })
	inRange := becomes(func(m *Model) {
		m.PodRanges = NewPodRanges([]netip.Prefix{netip.PrefixFrom(addrWeb, 24).Masked()}, nil)
	})
	for _, tc := range []struct {
		name    string
		peers   []Peer // further peers of the rule
		to      netip.Addr
		knows   Names
		edit    func(*Snapshot)
		toHost  bool
		want    string
		refused bool // see NamesRefused
	}{
		{name: "outside", to: addrWeb, knows: external, want: allowed},
		{name: "by a name of a Service", to: addrWeb, knows: service, want: allowed},
		{name: "a pod", to: addrC, knows: external, want: denied, refused: true},
		{name: "a pod by another name", to: addrC, knows: Names{"b.test"}, want: denied},
		{name: "a pod by the name of a Service", to: addrC, knows: service, want: allowed},
		{name: "a pod by both", to: addrC, knows: both, want: allowed},
		{name: "a pod by its address in a name", to: addrC, knows: Names{"10-0-1-3.x.pod.cluster.local"}, want: denied, refused: true},
		{name: "a pod by a name that only ends alike", to: addrC, knows: Names{"evilsvc.cluster.local"}, want: denied, refused: true},
		{name: "a pod that the rule selects, too", peers: []Peer{pods("pod=c")}, to: addrC, knows: external, want: allowed},
		{name: "a pod that the rule does not select", peers: []Peer{pods("pod=b")}, to: addrC, knows: external, want: denied, refused: true},
		{name: "a pod in a network of the rule", peers: []Peer{block("10.0.1.0/24")}, to: addrC, knows: external, want: allowed},
		{name: "the own node", to: addrWeb, knows: external, toHost: true, want: denied, refused: true},
		{name: "metadata", to: netip.MustParseAddr("169.254.169.254"), knows: both, want: denied, refused: true},
		{name: "metadata in a network of the rule", peers: []Peer{block("169.254.169.254/32")}, to: netip.MustParseAddr("169.254.169.254"), knows: both, want: allowed},
		{name: "an address that becomes a pod's", to: addrWeb, knows: external, edit: pod, want: denied, refused: true},
		{name: "an address that becomes a node's", to: addrWeb, knows: external, edit: node, want: denied, refused: true},
		{name: "a range that becomes pods'", to: addrWeb, knows: external, edit: inRange, want: denied, refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot(nil, &Chain{Rules: []Rule{rule(AdminTier, Allow, slices.Concat([]Peer{named}, tc.peers)...), rule(AdminTier, Deny)}})
			q := Query{Packet: tcp(addrA, tc.to, 443), ToHost: tc.toHost}
			if len(tc.knows) > 0 {
				q.Learned = anyAddress{&tc.knows}
			}
			if tc.edit != nil {
				s.Evaluate(q) // earlier cached evaluations must not count
				old := New(s.m)
				tc.edit(s)
				if addrs, all := s.ChangedSince(old); tc.want == denied && tc.refused && !all && !slices.Contains(addrs, tc.to) {
					t.Errorf("ChangedSince returns %v", addrs)
				}
			}
			d := s.Evaluate(q)
			got := denied
			if d.Allowed() {
				got = allowed
			}
			if got != tc.want {
				t.Errorf("got %v, want %s", d, tc.want)
			}
			if s.Lasting(q, d) {
				t.Error("the decision is lasting")
			}
			if got := !d.Allowed() && s.NamesRefused(q); got != tc.refused {
				t.Errorf("NamesRefused is %v", got)
			}
			if e := s.Explain(q); e.Decision != d {
				t.Errorf("explained %v, evaluated %v", e.Decision, d)
			}
		})
	}
}
