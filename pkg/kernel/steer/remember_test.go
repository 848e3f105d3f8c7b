package steer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// dport gives a packet a destination port.
func dport(port uint16) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.DstPort = port }
}

func extended(p *steertest.Packet) { p.Extended = true }
func noRoom(p *steertest.Packet)   { p.NoRoom = true }

// udpTo returns the class of a packet from pkt.
func udpTo(src, dst netip.Addr, port uint16) packet.Class {
	return packet.Class{Src: src, Dst: dst, Proto: packet.UDP, Port: port}
}

// allow adds allowed classes, like packets.
func allow(t *testing.T, fake *knftables.Fake, all ...packet.Class) {
	t.Helper()
	tx := fake.NewTransaction()
	for _, c := range all {
		tx.Add(verdictKey{c, false}.fakeElement())
	}
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

// allowedClasses returns the allowed classes in the table.
func allowedClasses(t *testing.T, s *Steerer) []packet.Class {
	t.Helper()
	var all []packet.Class
	if err := verdictsOf(s).All(t.Context(), func(v RememberedVerdict) {
		if !v.Denied {
			all = append(all, v.Class)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// variants are configurations with different chains around the remembered verdicts.
var variants = map[string]func(*Config){
	"no share":  remembering,
	"share":     func(c *Config) { remembering(c); sharing(c) },
	"early UDP": func(c *Config) { remembering(c); c.EarlyUDP = EarlyOn },
	"all": func(c *Config) {
		remembering(c)
		sharing(c)
		c.EarlyUDP, c.ObserveQueue, c.SourceCheck = EarlyOn, observeQueue, true
	},
}

// Packets of remembered classes, and only these, are decided without the agent.
func TestRememberedClassesAreNotQueued(t *testing.T) {
	pods := []netip.Addr{v4, v6}
	for name, edit := range variants {
		s, fake := newFake(t, edit)
		mustSync(t, s, Sets{Ingress: pods, ToHost: []netip.Addr{peer4, peer6}, Pods: pods, Stale: []netip.Addr{v4b, v6b}})
		for family, pod := range pods {
			peer, stale := []netip.Addr{peer4, peer6}[family], []netip.Addr{v4b, v6b}[family]
			allow(t, fake, udpTo(peer, pod, 80), udpTo(stale, pod, 80), udpTo(peer, stale, 80), udpTo(peer, pod, 82))
			mustDeny(t, s, time.Hour, udpTo(peer, pod, 81), udpTo(stale, pod, 81), udpTo(peer, pod, 82))
			for _, tt := range []traceCase{
				{"allowed", pkt(peer, pod, dport(80)), accept},
				{"allowed, early", pkt(peer, pod, dport(80), forwarded, translated), accept},
				{"denied", pkt(peer, pod, dport(81)), drop},
				{"denied, early", pkt(peer, pod, dport(81), forwarded, translated), drop},
				{"both", pkt(peer, pod, dport(82)), drop},
				{"another port", pkt(peer, pod, dport(83)), queue},
				{"another protocol", pkt(peer, pod, dport(80), proto("tcp")), queue},
				{"SCTP", pkt(peer, pod, dport(80), proto("sctp")), queue},
				{"the opposite direction", pkt(pod, peer, dport(80)), accept}, // not selected
				{"with extension headers", pkt(peer, pod, dport(80), extended), queue},
				{"denied, with extension headers", pkt(peer, pod, dport(81), extended), queue},
				{"invalid", pkt(peer, pod, dport(80), state(steertest.Invalid)), queue},
				{"untracked", pkt(peer, pod, dport(80), state(steertest.Untracked)), queue},
				{"from a stale address", pkt(stale, pod, dport(80)), queue},
				{"to a stale address", pkt(peer, stale, dport(80)), queue},
				{"established, from a stale address", pkt(stale, pod, dport(80), state(steertest.Established)), queue},
				{"denied, from a stale address", pkt(stale, pod, dport(81)), queue},
				{"to the node", pkt(peer, pod, dport(80), toHost), queue},
				{"denied, to the node", pkt(peer, pod, dport(81), toHost), queue},
				{"sent by the node", pkt(peer, pod, dport(81), fromNode), accept},
				{"established", pkt(peer, pod, dport(81), state(steertest.Established)), accept},
			} {
				tt.name = fmt.Sprintf("%s, %v: %s", name, pod, tt.name)
				checkTraces(t, fake, []traceCase{tt})
			}
		}
	}
}

// The kernel evaluates these rules for each packet, whether or not it is queued.
func TestMostPacketsPassFewRules(t *testing.T) {
	s, fake := newFake(t, func(c *Config) {
		remembering(c)
		c.SourceCheck = true
	})
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}, Egress: []netip.Addr{v4, v6}, Pods: []netip.Addr{v4, v6, v4b, v6b}, CheckSources: true, Unchecked: []string{"eth0"}, Bridges: []string{"cni0"}})
	allow(t, fake, udpTo(v4, peer4, 80), udpTo(v6, peer6, 80))
	for _, tt := range []struct {
		name   string
		packet steertest.Packet
		most   int
	}{
		{"established", pkt(v4, peer4, forwarded, state(steertest.Established)), 13},
		{"a reply", pkt(peer6, v6, forwarded, reply, state(steertest.Established)), 13},
		{"from a bridge", pkt(v4, peer4, arrivingOn("cni0"), state(steertest.Established)), 14},
		{"between pods of a bridge", pkt(v4b, v4, bridged, state(steertest.Established)), 15},
		{"between pods of a bridge, IPv6", pkt(v6b, v6, bridged, state(steertest.Established)), 16},
		{"remembered", pkt(v4, peer4, forwarded, dport(80)), 19},
		{"to the node, by an uplink", pkt(peer4, v4, arrivingOn("eth0"), toHost, state(steertest.Established)), 11},
		{"to the node, by a pod", pkt(v6, peer6, arrivingOn("cali1"), toHost, state(steertest.Established)), 14},
		{"remembered, IPv6", pkt(v6, peer6, forwarded, dport(80)), 25},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := steertest.Trace(fake, tt.packet, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != accept || got.Rules > tt.most {
				t.Errorf("%s after %d rules, want %s after %d at most", got.Verdict, got.Rules, accept, tt.most)
			}
		})
	}
}

// A packet of a remembered class gets the same connection mark as an accepted one. It keeps all other
// mark bits, and does not renew the timeout of the class.
func TestHitIsLikeAccepted(t *testing.T) {
	otherBits := ^(DefaultMark | DefaultLowerMark)
	for name, edit := range variants {
		s, fake := newFake(t, edit)
		mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
		allow(t, fake, udpTo(peer4, v4, 80), udpTo(peer6, v6, 80))
		for _, mark := range []uint32{0, otherBits, ^uint32(0), DefaultLowerMark | DefaultMark} {
			for _, p := range []steertest.Packet{pkt(peer4, v4), pkt(peer6, v6), pkt(peer4, v4, forwarded, translated)} {
				p.Mark, p.CTMark, p.DstPort = mark, mark&otherBits, 80
				got, err := steertest.Trace(fake, p, nil)
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != accept || got.Mark != mark&otherBits || got.CTMark != mark&otherBits|DefaultMark {
					t.Errorf("%s: %+v: %+v", name, p, got)
				}
			}
		}
	}
}

// Only a verdict of the agent adds a class, whatever marks other programs have set.
func TestOnlyVerdictsAreRemembered(t *testing.T) {
	const both = DefaultMark | DefaultLowerMark
	verdict := func(v steertest.Verdict, set, clear uint32) steertest.Agent {
		return func(p steertest.Packet, _ string) (steertest.Verdict, uint32) { return v, p.Mark&^clear | set }
	}
	remember, once, bypass := verdict(accept, both, 0), verdict(accept, DefaultMark, DefaultLowerMark), verdict(accept, 0, 0)
	related := func(p *steertest.Packet) { p.State, p.Proto, p.Forwarded = steertest.Related, "icmp", true }
	for name, edit := range variants {
		for _, tt := range []struct {
			name   string
			packet steertest.Packet
			agent  steertest.Agent
			want   int
		}{
			{"IPv4", pkt(peer4, v4), remember, 1},
			{"IPv6", pkt(peer6, v6), remember, 1},
			{"TCP", pkt(peer4, v4, proto("tcp")), remember, 1},
			{"early", pkt(peer4, v4, forwarded, translated), remember, 1},
			{"marked before", pkt(peer4, v4, marked(both, 0)), remember, 1},
			{"no room", pkt(peer4, v4, noRoom), remember, 0},
			{"IPv6, no room", pkt(peer6, v6, noRoom), remember, 0},
			{"accepted once", pkt(peer4, v4), once, 0},
			{"accepted once, marked before", pkt(peer4, v4, marked(both, 0)), once, 0},
			{"accepted once, early, marked before", pkt(peer4, v4, forwarded, translated, marked(both, 0)), once, 0},
			{"denied", pkt(peer4, v4), verdict(drop, both, 0), 0},
			{"no agent", pkt(peer4, v4, marked(both, 0)), bypass, 0},
			{"IPv6, no agent", pkt(peer6, v6, marked(both, 0)), bypass, 0},
			{"early, no agent", pkt(peer4, v4, forwarded, translated, marked(both, 0)), bypass, 0},
			{"to the node", pkt(v4, peer4, toHost), remember, 0},
			{"to the node, no agent", pkt(v4, peer4, toHost, marked(both, 0)), bypass, 0},
			{"not selected", pkt(v4, peer4, marked(both, 0)), remember, 0},
			{"established", pkt(peer4, v4, marked(both, 0), state(steertest.Established)), remember, 0},
			{"accepted before", pkt(peer4, v4, marked(both, DefaultMark), confirmed), remember, 0},
			{"ICMP error, no agent", pkt(peer4, v4, marked(both, 0), related), bypass, 0},
			{"ICMP error, not selected", pkt(v4, peer4, marked(both, 0), related), remember, 0},
			{"ICMP error", pkt(peer4, v4, marked(both, 0), related), remember, 0},
			{"ICMP", pkt(peer4, v4, proto("icmp")), remember, 0},
			{"SCTP", pkt(peer4, v4, proto("sctp")), remember, 0},
			{"extension headers", pkt(peer4, v4, extended), remember, 0},
			{"IPv6 extension headers", pkt(peer6, v6, extended), remember, 0},
		} {
			t.Run(name+", "+tt.name, func(t *testing.T) {
				s, fake := newFake(t, edit)
				mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}, ToHost: []netip.Addr{v4},
					CheckSources: true, Unchecked: []string{"eth0"}})
				p := tt.packet
				p.DstPort = 80
				if p.Confirmed {
					oneWay(t, fake, p)
				}
				got, err := steertest.Trace(fake, p, tt.agent)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for _, set := range verdictSets {
					n += len(fake.Table.Sets[set.name].Elements)
				}
				if n != tt.want {
					t.Errorf("%+v: %d classes are remembered, want %d", p, n, tt.want)
				}
				if got.Verdict != accept || got.Statement == "" || p.State != "" {
					return
				}
				_, verdict := tt.agent(steertest.Packet{}, "")
				if got.CTMark != verdict&DefaultMark || got.Mark&DefaultMark != 0 || verdict != 0 && got.Mark != 0 {
					t.Errorf("%+v: mark %#x, ct mark %#x", p, got.Mark, got.CTMark)
				}
				if tt.want == 0 {
					return
				}
				again, err := steertest.Trace(fake, p, nil)
				if err != nil || again.Verdict != accept || again.Mark != got.Mark || again.CTMark != got.CTMark {
					t.Errorf("%+v: first %+v, then %+v, %v", p, got, again, err)
				}
			})
		}
	}
}

// Each packet gets the same verdict and marks with and without remembered verdicts.
func TestRememberingDoesNotChangeVerdicts(t *testing.T) {
	for name, edit := range variants {
		r := rand.New(rand.NewPCG(1, 0))
		for range 5 {
			sets := randomSets(r)
			sets.Stale = nil // packets of stale addresses are queued again at the second hook
			with, withFake := newFake(t, edit)
			without, withoutFake := newFake(t, func(c *Config) { edit(c); c.Parts = nil })
			mustSync(t, with, sets)
			mustSync(t, without, sets)
			for range 400 {
				p := randomPacket(r)
				p.Extended = r.IntN(8) == 0
				denied := p.Src.As4()[3]%2 == p.Dst.As4()[3]%2
				lasting := r.IntN(2) == 0
				trace := func(fake *knftables.Fake, remember bool) steertest.Result {
					got, err := steertest.Trace(fake, p, func(p steertest.Packet, statement string) (steertest.Verdict, uint32) {
						switch {
						case strings.HasSuffix(statement, fmt.Sprintf(" %d", observeQueue)):
							return accept, p.Mark
						case denied:
							return drop, p.Mark
						case remember && lasting:
							return accept, p.Mark | DefaultMark | DefaultLowerMark
						}
						return accept, (p.Mark | DefaultMark) &^ DefaultLowerMark
					})
					if err != nil {
						t.Fatal(err)
					}
					got.Statement, got.Rules = "", 0
					return got
				}
				got, want := trace(withFake, true), trace(withoutFake, false)
				if got != want {
					t.Fatalf("%s: %+v: %+v, want %+v", name, p, got, want)
				}
				if denied && lasting {
					c := packet.Class{Src: p.Src, Dst: p.Dst, Proto: packet.UDP, Port: p.DstPort}
					if p.Proto == "tcp" {
						c.Proto = packet.TCP
					}
					mustDeny(t, with, time.Hour, c)
				}
			}
			if len(allowedClasses(t, with)) == 0 && len(sets.Ingress)+len(sets.Egress) > 8 {
				t.Errorf("%s: nothing was remembered", name)
			}
		}
	}
}

// Classes that cannot be elements are ignored.
func TestClassesThatTheKernelCannotRemember(t *testing.T) {
	s, _ := newFake(t, remembering)
	mustSync(t, s, Sets{})
	mapped := netip.AddrFrom16(v4.As16())
	all := []packet.Class{
		{}, {Src: v4, Dst: v6, Proto: packet.TCP}, {Src: v4, Dst: peer4, Proto: packet.SCTP}, {Src: v4, Dst: peer4},
		{Src: mapped, Dst: mapped, Proto: packet.TCP}, {Src: v6, Dst: mapped, Proto: packet.TCP}, {Src: v4, Proto: packet.UDP},
	}
	mustDeny(t, s, time.Hour, all...)
	if err := verdictsOf(s).Forget(t.Context(), all, all); err != nil {
		t.Error(err)
	}
	if got := remembered(t, s); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

// Verdicts can be changed only while this agent holds a table with the sets for them.
func TestVerdictsOfTableThatIsNotInPlace(t *testing.T) {
	all := classes(1)
	calls := map[string]func(*Steerer) error{
		"Forget":    func(s *Steerer) error { return verdictsOf(s).Forget(t.Context(), all, nil) },
		"ForgetAll": func(s *Steerer) error { return verdictsOf(s).ForgetAll(t.Context()) },
		"Deny":      func(s *Steerer) error { return verdictsOf(s).Deny(t.Context(), all, time.Second) },
		"All":       func(s *Steerer) error { return verdictsOf(s).All(t.Context(), func(RememberedVerdict) {}) },
	}
	check := func(t *testing.T, s *Steerer, want error) {
		t.Helper()
		for name, call := range calls {
			if err := call(s); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", name, err, want)
			}
		}
	}
	s, fake := newFake(t, remembering)
	check(t, s, errNotInPlace)
	mustSync(t, s, Sets{})
	check(t, s, nil)

	newer := newOn(t, fake, func(c *Config) { remembering(c); c.Holder = handover.Holder{Started: c.Holder.Started + 1, Queue: 108} })
	mustSync(t, newer, Sets{})
	check(t, newer, nil)
	s.commits.started() // stands for the commit of newer
	mustSync(t, s, Sets{})
	check(t, s, errStandby)

	newer.Release()
	if err := newer.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	check(t, newer, errNotInPlace)
}

// A table has no part that is off or that the kernel lacks a feature for.
func TestPartsThatAreLeftOut(t *testing.T) {
	missing := errors.New("no counters")
	for name, tt := range map[string]struct {
		part Remembered
		caps Capabilities
		want error // of a call
	}{
		"off":         {Remembered{}, Capabilities{}, errNotInPlace},
		"unsupported": {Remembered{For: time.Minute}, Capabilities{Remember: missing}, missing},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Parts = []Part{&tt.part}
			s := newSteerer(cfg, tt.caps, nil, nil, nil)
			if len(s.cfg.Parts) > 0 || s.cfg.askChain() != s.cfg.decideChain() {
				t.Error("the part is in the table")
			}
			if err := tt.part.ForgetAll(t.Context()); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// rememberingRun is like run with remembered verdicts.
func rememberingRun(t *testing.T) running {
	t.Helper()
	nft := &hanging{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	repaired := 0
	s := newOn(t, nft, func(c *Config) { remembering(c); c.Repaired = func() { repaired++ } })
	startRun(t, s, isolatedPod)
	time.Sleep(time.Second)
	synctest.Wait()
	if err := s.Healthy(); err != nil {
		t.Fatal(err)
	}
	return running{s, nft.Fake, nft, &repaired}
}

// All verdicts are flushed whenever another process may have added some, even if nothing else has
// changed. Otherwise they stay.
func TestVerdictsAreFlushedWhenOthersMayHaveAddedSome(t *testing.T) {
	unrelatedElement := func(t *testing.T, s running) { // changes the table back and forth
		tamper(t, s.fake, func(tx *knftables.Transaction) {
			tx.Add(&knftables.Element{Set: "ingress-v4", Key: []string{"192.0.2.9"}})
			tx.Delete(&knftables.Element{Set: "ingress-v4", Key: []string{"192.0.2.9"}})
		})
	}
	for _, tt := range []struct {
		name  string
		event func(*testing.T, running)
		kept  bool
	}{
		{"another process", func(t *testing.T, s running) { s.notify(t, true) }, false},
		{"a socket of another process", func(t *testing.T, s running) {
			unrelatedElement(t, s)
			generation, _ := s.kernel.generation(t.Context())
			s.kernel.(*fakeKernel).notify <- commit{generation: generation, touched: true, port: 4711}
		}, false},
		{"lost notifications", func(t *testing.T, s running) {
			s.kernel.(*fakeKernel).notify <- commit{lost: true}
		}, false},
		{"a change found by polling", func(t *testing.T, s running) {
			tamper(t, s.fake, tamperings["element added"])
			s.notify(t, false)
			time.Sleep(verifyInterval)
		}, false},
		{"no notifications", func(t *testing.T, s running) {
			unrelatedElement(t, s)
			s.commits.stopped()
			time.Sleep(verifyInterval)
		}, false},
		{"a commit to another table", func(t *testing.T, s running) {
			s.notify(t, false)
			time.Sleep(verifyInterval)
		}, true},
		{"our own commit of verdicts", func(t *testing.T, s running) {
			mustDeny(t, s.Steerer, time.Hour, classes(2)...)
			generation, _ := s.kernel.generation(t.Context())
			s.kernel.(*fakeKernel).notify <- commit{generation: generation, touched: true, port: fakePort}
			time.Sleep(verifyInterval)
		}, true},
		{"our own commit of addresses", func(t *testing.T, s running) {
			s.Set(Sets{Ingress: []netip.Addr{v4b}})
			synctest.Wait()
			s.notifyOwn(t)
			time.Sleep(verifyInterval)
		}, true},
		{"time", func(t *testing.T, s running) { time.Sleep(10 * verifyInterval) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := rememberingRun(t)
				c := udpTo(peer4, v4, 80)
				allow(t, s.fake, c)
				tt.event(t, s)
				time.Sleep(minInterval)
				synctest.Wait()
				if got := allowedClasses(t, s.Steerer); slices.Contains(got, c) != tt.kept {
					t.Errorf("%v are remembered", got)
				}
				if err := s.Healthy(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An agent that takes over the table begins without verdicts, whatever the layout of the table.
func TestVerdictsOfEarlierAgentsAreFlushed(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"the same layout":   remembering,
		"another layout":    func(c *Config) { remembering(c); c.ObserveQueue = observeQueue },
		"no longer in use":  func(c *Config) {},
		"a newer agent":     func(c *Config) { remembering(c); c.Holder = handover.Holder{Started: c.Holder.Started + 1, Queue: 108} },
		"another time":      func(c *Config) { c.Parts = []Part{&Remembered{For: time.Minute}} },
		"with other queues": func(c *Config) { remembering(c); sharing(c) },
	} {
		t.Run(name, func(t *testing.T) {
			before, fake := newFake(t, remembering)
			mustSync(t, before, isolatedPod)
			c := udpTo(peer4, v4, 80)
			allow(t, fake, c)
			s := newOn(t, fake, edit)
			mustSync(t, s, isolatedPod)
			checkTraces(t, fake, []traceCase{{"first packet", pkt(peer4, v4, dport(80)), queue}})
		})
	}
}
