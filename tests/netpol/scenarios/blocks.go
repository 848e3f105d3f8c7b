package scenarios

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Models with hosts outside the cluster.
var (
	outside    = Model{Hosts: []Host{Outside()}}
	twoOutside = Model{Hosts: []Host{Outside(), {
		Name: "outside/guest", Node: "node-2",
		Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("2001:db8:1::200")},
	}}, Pods: []string{"a", "b"}}
)

// blocks are about addresses.
var blocks = []Scenario{
	{
		Name: "egress to the addresses of one pod", Statements: np("NP-17"),
		Steps: []Step{{
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "to-y-a", Subject("pod=a"), Egress(To(Blocks(s.CIDRs("y/a")...)...))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllEgress("x/a", false)
				r.ExpectPeer("x/a", "y/a", true)
			},
		}},
	},
	{
		Name: "everything except the addresses of one pod", Statements: np("NP-18"),
		Steps: []Step{{
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "not-y-a", Subject("pod=a"), Egress(To(everyoneExcept(s, "y/a")...))))
			},
			Want: func(r *Reachability) { r.ExpectPeer("x/a", "y/a", false) },
		}},
	},
	{
		Name: "what one policy excepts, another one allows", Statements: np("NP-2", "NP-18"),
		Steps: []Step{
			{
				Name: "excepted",
				Change: func(s *State) {
					s.Apply(NewPolicy("x", "not-y-a", Subject("pod=a"), Ingress(From(everyoneExcept(s, "y/a")...))))
				},
				Want: func(r *Reachability) { r.ExpectPeer("y/a", "x/a", false) },
			}, {
				Name: "allowed by another policy",
				Change: func(s *State) {
					s.Apply(NewPolicy("x", "y-a", Subject("pod=a"), Ingress(From(Blocks(s.CIDRs("y/a")...)...))))
				},
			}, {
				Name:   "excepted again",
				Change: withdraw("x/y-a"),
				Want:   func(r *Reachability) { r.ExpectPeer("y/a", "x/a", false) },
			},
		},
	},
	{
		Name: "what one peer excepts, another peer of the rule allows", Statements: np("NP-9", "NP-18"),
		Steps: []Step{
			{Name: "allowed first", Change: func(s *State) { allowAndExcept(s, false) }, Want: notYB},
			{Name: "excepted first", Change: func(s *State) { allowAndExcept(s, true) }, Want: notYB},
		},
	},
	{
		Name: "contiguous blocks around several pods", Statements: np("NP-9", "NP-17"),
		Steps: []Step{{
			Name: "each pod of y by a block of its own, pods of z by none",
			Change: func(s *State) {
				var peers []Peer
				for _, name := range []string{"y/a", "y/b", "y/c"} {
					peers = append(peers, Blocks(s.CIDRs(name)...)...)
				}
				s.Apply(NewPolicy("x", "blocks", Ingress(From(peers...))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/*", "x/*", true)
			},
		}, {
			Name: "with a port each",
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "blocks",
					Ingress(From(Blocks(s.CIDRs("y/a")...)...), At(TCP(80))),
					Ingress(From(Blocks(s.CIDRs("y/b")...)...), At(TCP(81))),
					Ingress(From(Blocks(s.CIDRs("y/c")...)...), At(UDP(80)))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(TCP(80)).ExpectPeer("y/a", "x/*", true)
				r.For(TCP(81)).ExpectPeer("y/b", "x/*", true)
				r.For(UDP(80)).ExpectPeer("y/c", "x/*", true)
			},
		}, {
			Name: "a rule for each pod and port, among many that match no pod",
			Change: func(s *State) {
				var parts []Part
				for _, name := range s.Endpoints() {
					parts = append(parts,
						Ingress(From(Blocks(s.CIDRs(name)...)...), At(Range("TCP", 81, 89))),
						Ingress(From(Block("198.51.100.0/24"), Pods("pod=none")), At(TCP(0), Named("UDP", "nothing"))),
						Egress(To(Blocks(s.CIDRs(name)...)...), At(UDP(80), UDP(81), TCP(0))))
				}
				s.Withdraw("x/blocks")
				s.Apply(NewPolicy("x", "many", append(parts, Subject("pod=a"))...))
			},
			Want: func(r *Reachability) {
				r.For(TCP(80), UDP(0)).ExpectAllIngress("x/a", false)
			},
		}},
	},
	{
		Name: "the two halves of the space are the whole", Statements: np("NP-17"),
		Model: outside,
		Steps: []Step{{
			Change: apply(NewPolicy("x", "halves", Ingress(From(Block("0.0.0.0/1"), Block("128.0.0.0/1"), Block("::/1"), Block("8000::/1"))))),
		}, {
			Name:   "the lower half alone",
			Change: apply(NewPolicy("x", "halves", Ingress(From(Block("0.0.0.0/1"), Block("::/1"))))),
			Want: func(r *Reachability) {
				r.For(Traffic{Family: corev1.IPv4Protocol}).ExpectPeer("outside/client", "x/*", false)
				r.For(Traffic{Family: corev1.IPv6Protocol}).ExpectPeer("*", "x/*", false)
				r.For(Traffic{Family: corev1.IPv6Protocol}).ExpectPeer("outside/client", "x/*", true)
			},
		}},
	},
	{
		Name: "a block with host bits is the network around it", Statements: np("NP-19"), Refusable: true, // since 1.37
		Steps: []Step{{
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "sloppy", Subject("pod=a"), Ingress(From(
					Block(around(s, "y/b", corev1.IPv4Protocol).String()), Block(around(s, "y/b", corev1.IPv6Protocol).String())))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
					block := around(r.State(), "y/b", family).Masked()
					for _, name := range r.State().Endpoints() {
						if block.Contains(r.State().Addr(name, family)) {
							r.For(Traffic{Family: family}).ExpectPeer(name, "x/a", true)
						}
					}
				}
			},
		}},
	},
	onModel(outside, holds("a machine outside is no pod of any namespace", np("NP-13"),
		policies(NewPolicy("x", "pods", Ingress(From(Namespaces(""), Pods(""))))),
		func(r *Reachability) { r.ExpectPeer("outside/client", "x/*", false) })),

	onModel(outside, holds("from a machine outside only", np("NP-8", "NP-17"),
		policies(NewPolicy("x", "outside", Ingress(From(Block("203.0.113.0/24"), Block("2001:db8::/32"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("outside/client", "x/*", true)
		})),

	onModel(outside, holds("no peers is anyone, machines outside too", np("NP-8"),
		policies(NewPolicy("x", "port", Ingress(At(TCP(80))), Egress(At(TCP(80))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectAllEgress("x/*", false)
			r.For(TCP(80)).ExpectAll(true)
		})),

	onModel(outside, holds("egress to the world except one network", np("NP-18"),
		policies(NewPolicy("x", "world", Egress(To(Namespaces(""), Block("0.0.0.0/0").Except("203.0.113.0/28", "198.51.100.0/24"), Block("::/0").Except("2001:db8::/64"))))),
		func(r *Reachability) { r.ExpectPeer("x/*", "outside/client", false) })),

	onModel(twoOutside, holds("of two machines outside, one is excepted", np("NP-17", "NP-18"),
		policies(NewPolicy("x", "not-guest", Ingress(
			From(Block("203.0.113.0/24").Except("203.0.113.128/25"), Block("2001:db8::/32").Except("2001:db8:1::/48"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("outside/client", "x/*", true)
		})),

	onModel(outside, holds("a named port of what is no pod does not match", np("NP-27"),
		policies(NewPolicy("x", "named", Egress(At(Named("TCP", "tcp-80"))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/*", false)
			r.For(TCP(80)).ExpectPeer("x/*", "[xyz]/*", true)
		})),
}

// allowAndExcept applies a rule for x/a with two kinds of peers: one allows everyone except
// y/a and y/b, the other allows y/a.
func allowAndExcept(s *State, exceptFirst bool) {
	peers := slices.Concat(Blocks(s.CIDRs("y/a")...), everyoneExcept(s, "y/a", "y/b"))
	if exceptFirst {
		slices.Reverse(peers)
	}
	s.Apply(NewPolicy("x", "both", Subject("pod=a"), Ingress(From(peers...))))
}

func notYB(r *Reachability) { r.ExpectPeer("y/b", "x/a", false) }

// around returns a block of four addresses that contains a pod's, written with that
// address.
func around(s *State, name string, family corev1.IPFamily) netip.Prefix {
	addr := s.Addr(name, family)
	return netip.PrefixFrom(addr, addr.BitLen()-2)
}

// everyoneExcept returns a peer for each family of the state.
func everyoneExcept(s *State, names ...string) []Peer {
	except := make(map[bool][]string)
	for _, name := range names {
		for _, cidr := range s.CIDRs(name) {
			is4 := netip.MustParsePrefix(cidr).Addr().Is4()
			except[is4] = append(except[is4], cidr)
		}
	}
	var peers []Peer
	for is4, cidrs := range except {
		world := "::/0"
		if is4 {
			world = "0.0.0.0/0"
		}
		peers = append(peers, Block(world).Except(cidrs...))
	}
	return peers
}
