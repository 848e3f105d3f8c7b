package steer

import (
	"errors"
	"iter"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

const answered = steertest.Reject

// refusing is an agent that denies every packet, and has the table answer those that it can answer.
func refusing(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
	if p.QueuedAt == "postrouting" || p.ToHost {
		return drop, p.Mark
	}
	return accept, p.Mark&^DefaultMark | DefaultLowerMark
}

// answeredSets are the sets of a node whose pods v4 and v6 are isolated and answered.
func answeredSets() Sets {
	return Sets{Ingress: []netip.Addr{v4, v6}, Egress: []netip.Addr{v4, v6}, Pods: []netip.Addr{v4, v6, v4b, v6b}, Answered: []netip.Addr{v4, v6}}
}

func TestAnsweredPackets(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, answeredSets())
	oneWay(t, fake, pkt(peer4, v4, forwarded))
	const blockMark = DefaultLowerMark
	ack := func(p *steertest.Packet) { p.Proto, p.TCPFlags = "tcp", steertest.ACK }
	spent := func(p *steertest.Packet) { p.SrcSpent, p.DstSpent = true, true }
	rst := func(p *steertest.Packet) {
		p.Proto, p.TCPFlags, p.State, p.Reply = "tcp", 0x14, steertest.Related, true
	}
	for _, tt := range []traceCase{
		{"to a pod", pkt(peer4, v4, forwarded), answered},
		{"to a pod", pkt(peer6, v6, forwarded), answered},
		{"from a pod", pkt(v4, peer4, forwarded, proto("tcp")), answered},
		{"by IPVS", pkt(peer4, v4), answered},
		{"late", pkt(peer4, v4, forwarded, ack), answered},
		{"beyond the limit", pkt(peer4, v4, forwarded, spent), drop},
		{"forged", pkt(peer4, v4, forwarded, astray), drop},
		{"multicast", pkt(v4, netip.MustParseAddr("224.0.0.251"), forwarded), drop},
		{"from no pod to no pod", pkt(peer4, netip.MustParseAddr("192.0.2.9"), forwarded), accept},
		{"invalid", pkt(peer4, v4, forwarded, state(steertest.Invalid)), drop},
		{"untracked", pkt(peer4, v4, forwarded, state(steertest.Untracked)), drop},
		{"own node", pkt(peer4, v4, fromNode), accept},
		{"established", pkt(peer4, v4, forwarded, state(steertest.Established)), accept},
		{"accepted flow", pkt(peer4, v4, forwarded, marked(0, DefaultMark), confirmed), accept},
		{"another program's mark", pkt(peer4, v4b, forwarded, marked(blockMark, 0)), accept},
		{"another program's mark, accepted flow", pkt(peer4, v4, forwarded, marked(blockMark, DefaultMark), confirmed), accept},
		{"the answer", pkt(v4, peer4, rst), accept},
		{"the answer about a blocked connection", pkt(v4, peer4, rst, marked(0, blockMark)), accept},
		{"an ICMP answer", pkt(v4b, peer4, fromNode, proto("icmp"), state(steertest.Related), reply, marked(0, blockMark)), accept},
		{"a reset of a pod", pkt(v4, peer4, rst, forwarded), drop},
		{"a reset of a pod, another program's mark", pkt(v4, peer4, rst, forwarded, marked(DefaultMark, 0)), drop},

		{"blocked, to the pod", pkt(peer4, v4, forwarded, state(steertest.Established), marked(0, blockMark)), answered},
		{"blocked, from the pod", pkt(v6, peer6, forwarded, state(steertest.Established), reply, marked(0, blockMark)), answered},
		{"blocked, of another pod", pkt(peer4, v4b, forwarded, state(steertest.Established), marked(0, blockMark)), drop},
		{"blocked, forged", pkt(peer4, v4, forwarded, astray, state(steertest.Established), marked(0, blockMark)), drop},
		{"blocked, to the node", pkt(v4, peer4, toHost, state(steertest.Established), marked(0, blockMark)), answered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := steertest.Trace(fake, tt.packet, refusing)
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != tt.want {
				t.Errorf("%+v: %s at %s, want %s", tt.packet, got.Verdict, got.Hook, tt.want)
			}
		})
	}
}

// With answers, exactly those packets pass that pass without them, whatever the agent decides, and even if
// the rules that answer are gone.
func TestAnswersLetNoOtherPacketsPass(t *testing.T) {
	edit := func(c *Config) {
		remembering(c)
		c.EarlyUDP, c.SourceCheck, c.AuditQueue = EarlyOn, true, 110
	}
	for _, agent := range []steertest.Agent{refusing, accepting} {
		for _, broken := range []bool{false, true} {
			s, answers := newFake(t, edit)
			sets := answeredSets()
			sets.CheckSources = true
			mustSync(t, s, sets)
			without, plain := newFake(t, edit)
			sets.Answered = nil
			mustSync(t, without, sets)
			if broken {
				tx := answers.NewTransaction()
				for _, name := range []string{forward.accepted().name, output.accepted().name, prerouting.accepted().name} {
					tx.Flush(&knftables.Chain{Name: name})
				}
				if err := answers.Run(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
			}
			for p := range somePackets() {
				isAnswer := p.State == steertest.Related && !p.Forwarded && !p.ToHost
				forgedAtBridge := p.Bridged && p.SrcLocal // at forward it has an input interface
				if isAnswer || forgedAtBridge {
					continue
				}
				want, err := steertest.Trace(plain, p, agent)
				got, err2 := steertest.Trace(answers, p, agent)
				if err != nil || err2 != nil {
					t.Fatal(err, err2)
				}
				if (got.Verdict == accept) != (want.Verdict == accept) || broken && got.Verdict == answered && p.CTMark == 0 {
					t.Errorf("broken %v: %+v: %s at %s, without answers %s at %s", broken, p, got.Verdict, got.Hook, want.Verdict, want.Hook)
				}
			}
		}
	}
}

// somePackets yields packets that differ in what the rules look at.
func somePackets() iter.Seq[steertest.Packet] {
	edits := [][]func(*steertest.Packet){
		{proto("udp"), proto("tcp"), proto("icmp"), func(p *steertest.Packet) { p.Proto, p.TCPFlags = "tcp", 0x14 }},
		{state(steertest.New), confirmed, state(steertest.Established), state(steertest.Related), state(steertest.Invalid)},
		{marked(0, 0), marked(0, DefaultMark), marked(0, DefaultLowerMark), marked(DefaultLowerMark, 0), marked(DefaultMark|DefaultLowerMark, 0)},
		{func(*steertest.Packet) {}, forwarded, toHost, func(p *steertest.Packet) { p.Forwarded, p.Bridged = true, true }},
		{func(*steertest.Packet) {}, translated, astray, fromNode},
	}
	return func(yield func(steertest.Packet) bool) {
		for _, ends := range [][2]netip.Addr{{peer4, v4}, {v4, v4b}, {v6, netip.MustParseAddr("ff02::1")}} {
			packets := []steertest.Packet{pkt(ends[0], ends[1])}
			for _, choices := range edits {
				var more []steertest.Packet
				for _, p := range packets {
					for _, edit := range choices {
						q := p
						edit(&q)
						more = append(more, q)
					}
				}
				packets = more
			}
			for _, p := range packets {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// hasAnswers reports whether a table has chains and sets for answers.
func hasAnswers(fake *knftables.Fake) bool {
	fake.RLock()
	defer fake.RUnlock()
	return fake.Table.Chains[refuseChain] != nil && fake.Table.Sets[familyName(answeredSet, false)] != nil
}

func TestTableAnswersFromTheFirstAnsweredPodOn(t *testing.T) {
	s, fake := newFake(t, nil)
	none := answeredSets()
	none.Answered = nil
	mustSync(t, s, none)
	if hasAnswers(fake) {
		t.Error("the table answers without an answered pod")
	}
	for _, sets := range []Sets{answeredSets(), none, answeredSets()} {
		mustSync(t, s, sets)
		if !hasAnswers(fake) {
			t.Error("the table does not answer")
		}
		for _, f := range families {
			if got := len(fake.Table.Sets[familyName(answeredSet, f.ipv6)].Elements); got != len(sets.Answered)/2 {
				t.Errorf("IPv6 %v: %d answered pods, want %d", f.ipv6, got, len(sets.Answered)/2)
			}
		}
	}
	if testutil.ToFloat64(s.metrics.lastSuccess) == 0 || testutil.ToFloat64(s.metrics.support.WithLabelValues("queue")) != 1 {
		t.Error("the last success is not exported, or the queue statement is not said to be supported")
	}
	if got := testutil.ToFloat64(s.metrics.repairs); got != 0 {
		t.Errorf("%v repairs, want none", got)
	}

	next := newOn(t, fake, nil)
	mustSync(t, next, none)
	if !hasAnswers(fake) {
		t.Error("the next agent has removed base chains")
	}
}

func TestTableDoesNotAnswerWithoutSupport(t *testing.T) {
	for name, s := range map[string]func(*Steerer){
		"off":        func(s *Steerer) { s.mayAnswer = false },
		"old kernel": func(s *Steerer) { s.mayAnswer = Capabilities{Reject: rejectsEarly("5.4.0")}.Answers() },
		"unknown":    func(s *Steerer) { s.mayAnswer = Capabilities{Reject: errors.New("unknown")}.Answers() },
	} {
		t.Run(name, func(t *testing.T) {
			steerer, fake := newFake(t, nil)
			s(steerer)
			mustSync(t, steerer, answeredSets())
			if hasAnswers(fake) {
				t.Error("the table answers")
			}
		})
	}
	if (Capabilities{SourceCheck: errors.ErrUnsupported}).Answers() || rejectsEarly("5.9.0") != nil || rejectsEarly("linux") == nil {
		t.Error("wrong capabilities")
	}
}
