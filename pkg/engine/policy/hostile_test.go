package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// hostile are policies written to make packets expensive: chains with n items, none of which
// matches the packet tcp(addrB, addrA, 8080).
var hostile = []struct {
	name  string
	rules func(n int) []Rule
}{
	{"blocks", func(n int) []Rule {
		return []Rule{allowing(func(r *Rule) {
			p := Peer{}
			for i := range n {
				p.Blocks = append(p.Blocks, Block{Prefix: hostPrefix(i)})
			}
			r.Peers = append(r.Peers, p)
		})}
	}},
	{"holes", func(n int) []Rule {
		return []Rule{allowing(func(r *Rule) {
			b := Block{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.PrefixFrom(addrB, 32)}}
			for i := range n {
				b.Except = append(b.Except, hostPrefix(i))
			}
			r.Peers = []Peer{{Blocks: []Block{b}}}
		})}
	}},
	{"ports", func(n int) []Rule {
		return []Rule{allowing(func(r *Rule) {
			r.AnyPeer, r.AnyPort = true, false
			for i := range n {
				r.Ports = append(r.Ports, hostilePort(i))
			}
		})}
	}},
	{"rules with a port each", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) { r.AnyPeer, r.AnyPort, r.Ports = true, false, []Port{hostilePort(i)} })
	}},
	{"rules with a block each", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) { r.Peers = []Peer{{Blocks: []Block{{Prefix: hostPrefix(i)}}}} })
	}},
	{"nested blocks", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) {
			r.AnyPort, r.Ports = false, []Port{hostilePort(i)}
			r.Peers = []Peer{{Blocks: []Block{{Prefix: netip.PrefixFrom(addrB, 1+i%32).Masked()}, {Prefix: hostPrefix(i)}}}}
		})
	}},
	{"equal selectors", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) {
			r.AnyPort, r.Ports, r.Peers = false, []Port{hostilePort(i)}, []Peer{pods("pod=b")}
		})
	}},
	{"selectors", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) { r.Peers = []Peer{pods(fmt.Sprintf("pod=b,x%d", i))} })
	}},
	{"selectors that need nothing", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) {
			r.AnyPort, r.Ports, r.Peers = false, []Port{hostilePort(i)}, []Peer{pods(fmt.Sprintf("pod!=x%d", i))}
		})
	}},
	{"named ports", func(n int) []Rule {
		return repeat(n, func(i int, r *Rule) {
			r.AnyPeer, r.AnyPort, r.Ports = true, false, []Port{{Proto: packet.TCP, Name: fmt.Sprint("x", i)}}
		})
	}},
}

// interleaved has as many rules that match the peer as rules that match the port, and none that
// matches both.
func interleaved(n int) []Rule {
	return repeat(n, func(i int, r *Rule) {
		r.AnyPort = false
		if i%2 == 0 {
			r.AnyPeer, r.Ports = true, []Port{hostilePort(i)}
		} else {
			r.Peers, r.Ports = []Peer{pods("pod=c")}, []Port{{Proto: packet.TCP, First: 8080, Last: 8080}}
		}
	})
}

func allowing(with func(*Rule)) Rule {
	r := Rule{Tier: NetworkPolicyTier, Action: Allow, Policy: &Ref{Namespace: "x", Name: "hostile"}, AnyPort: true}
	with(&r)
	return r
}

func repeat(n int, with func(i int, r *Rule)) []Rule {
	rules := make([]Rule, n)
	for i := range rules {
		rules[i] = allowing(func(r *Rule) { r.Index = i; with(i, r) })
	}
	return rules
}

func hostPrefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(i >> 15), byte(i >> 7), byte(2 * i)}), 32)
}

// hostilePort returns every second port and never 8080.
func hostilePort(i int) Port {
	port := uint16(2*i%65536 + 1)
	return Port{Proto: packet.TCP, First: port, Last: port}
}

// deferredRoom is the room for deferred evaluations of hostileSnapshot.
const deferredRoom = 1024

// hostileSnapshot has a pod that the rules isolate. Its indexes are already built.
func hostileSnapshot(rules []Rule) (*Snapshot, chan *Evaluation) {
	s, deferred := snapshot(&Chain{Rules: append(rules, isolate())}, nil), make(chan *Evaluation, deferredRoom)
	s.m.Deferred = deferred
	s.Prepare()
	return s, deferred
}

func TestHostilePoliciesDeny(t *testing.T) {
	for _, h := range append(hostile[:len(hostile):len(hostile)], struct {
		name  string
		rules func(int) []Rule
	}{"interleaved", interleaved}) {
		s, _ := hostileSnapshot(h.rules(5000))
		p := tcp(addrB, addrA, 8080)
		if got := s.Evaluate(Query{Packet: p}); got.Reason != Isolated {
			t.Errorf("%s: %v, want isolated", h.name, got)
		}
		if n := testing.AllocsPerRun(10, func() { s.Evaluate(Query{Packet: p}) }); n != 0 {
			t.Errorf("%s: %v allocations, want 0", h.name, n)
		}
	}
}

// Evaluations too expensive for a waiting packet are deferred and made only once.
func TestExpensivePeersAreDeferred(t *testing.T) {
	for _, tc := range []struct {
		name  string
		n     int
		rules func(i int, r *Rule)
		want  Reason
	}{
		{"few selectors", 10, func(i int, r *Rule) { r.Peers = []Peer{pods(fmt.Sprintf("pod!=x%d", i))} }, RuleMatched},
		{"many of which few can match", 60000, func(i int, r *Rule) { r.Peers = []Peer{pods(fmt.Sprintf("pod=x%d", i))} }, Isolated},
		{"many of which the peer has but one label", 60000, func(i int, r *Rule) { r.Peers = []Peer{pods(fmt.Sprintf("pod=b,x%d", i))} }, Isolated},
		{"many that can match", 1000, func(i int, r *Rule) { r.Peers = []Peer{pods(fmt.Sprintf("pod!=x%d", i))} }, NotEvaluated},
		{"many values", 1, func(i int, r *Rule) {
			r.Peers = []Peer{{Pods: &PodSelector{Namespace: "x", Pods: manyValues("pod", 1000)}}}
		}, NotEvaluated},
		{"a value that is repeated", 1, func(i int, r *Rule) {
			r.Peers = []Peer{{Pods: &PodSelector{Namespaces: labels.Everything(), Pods: repeatedValue("pod", "b", 20)}}}
		}, RuleMatched},
		{"many rules of one selector", 1000, func(i int, r *Rule) { r.Peers = []Peer{pods("pod=b")} }, NotEvaluated},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, deferred := hostileSnapshot(repeat(tc.n, tc.rules))
			q := Query{Packet: tcp(addrB, addrA, 8080), Defer: true}
			if got := s.Evaluate(q); got.Reason != tc.want || tc.want == NotEvaluated && got.Action != Deny {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if n := len(deferred); (n == 1) != (tc.want == NotEvaluated) {
				t.Errorf("%d evaluations deferred", n)
			}
			if tc.want != NotEvaluated {
				return
			}
			s.Evaluate(q)
			if n := len(deferred); n != 1 {
				t.Errorf("%d evaluations deferred for two packets of one peer, want 1", n)
				return
			}
			(<-deferred).Run()
			want := s.m.Endpoints.At(addrA).Ingress.scan(&flow{peer: s.Endpoint(addrB), peerAddr: addrB, dst: s.Endpoint(addrA), proto: packet.TCP, dstPort: 8080})
			if got := s.Evaluate(q); got != want.decision(Ingress) {
				t.Errorf("%v after it was evaluated, want %v", got, want.decision(Ingress))
			}
		})
	}
}

// Evaluations that do not fit into the queue are deferred later.
func TestDeferredEvaluationsAreNotLost(t *testing.T) {
	s, deferred := hostileSnapshot(excluding(deferredRoom + 100))
	evaluate := func(n int) Reason {
		e := *s.Endpoint(addrB)
		e.Version, e.Labels = NewVersion(), peerNumber(n).Labels
		edit := s.m.Endpoints.Edit()
		edit.Set(addrB, &e)
		s.m.Endpoints = edit.Done()
		return s.Evaluate(Query{Packet: tcp(addrB, addrA, 8080), Defer: true}).Reason
	}
	const peers = deferredRoom + 10
	for round := range 2 {
		for n := range peers {
			if got := evaluate(n); round == 0 && got != NotEvaluated {
				t.Fatalf("peer %d: %v, want it to be deferred", n, got)
			}
		}
		for len(deferred) > 0 {
			(<-deferred).Run()
		}
	}
	for n := range peers {
		if got := evaluate(n); got == NotEvaluated {
			t.Fatalf("peer %d is not evaluated", n)
		}
	}
}

func manyValues(key string, n int) labels.Selector {
	text := "b"
	for i := range n {
		text += fmt.Sprintf(",x%d", i)
	}
	return selector(fmt.Sprintf("%s in (%s)", key, text))
}

// repeatedValue is a selector that lists a value n times, which API servers accept.
func repeatedValue(key, value string, n int) labels.Selector {
	r, err := labels.NewRequirement(key, selection.In, slices.Repeat([]string{value}, n))
	if err != nil {
		panic(err)
	}
	return labels.NewSelector().Add(*r)
}
