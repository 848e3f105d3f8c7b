package domains

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

var _ policy.Learned = (*Table)(nil)

func TestNamesAreLearned(t *testing.T) {
	const name = "api.example.test"
	chain := []dnsmessage.Resource{cname(name, "b.test", 300), cname("b.test", "c.test", 300), at("c.test", "192.0.2.1", 300)}
	for _, tc := range []struct {
		title   string
		kind    dnsmessage.Type
		answers []dnsmessage.Resource
		want    string // addresses known by name, and no others of the answers
	}{
		{"one address", typeA, []dnsmessage.Resource{at(name, "192.0.2.1", 300)}, "192.0.2.1"},
		{"several", typeA, []dnsmessage.Resource{at(name, "192.0.2.1", 300), at(name, "192.0.2.2", 300)}, "192.0.2.1 192.0.2.2"},
		{"IPv6", typeAAAA, []dnsmessage.Resource{at(name, "2001:db8::1", 300)}, "2001:db8::1"},
		{"an IPv4 address written as IPv6", typeAAAA, []dnsmessage.Resource{at(name, "::ffff:192.0.2.1", 300)}, "192.0.2.1"},
		{"capital letters", typeA, []dnsmessage.Resource{at("aPi.eXample.TEST", "192.0.2.1", 300)}, "192.0.2.1"},
		{"a chain", typeA, chain, "192.0.2.1"},
		{"a chain in capital letters", typeA, []dnsmessage.Resource{cname("API.example.test", "B.test", 300), at("b.TEST", "192.0.2.1", 300)}, "192.0.2.1"},
		{"a chain from behind", typeA, []dnsmessage.Resource{chain[2], chain[1], chain[0]}, "192.0.2.1"},
		{"a chain of IPv6", typeAAAA, []dnsmessage.Resource{chain[0], chain[1], at("c.test", "2001:db8::1", 300)}, "2001:db8::1"},

		{"nothing", typeA, nil, ""},
		{"another name", typeA, []dnsmessage.Resource{at("evil.test", "192.0.2.1", 300)}, ""},
		{"a name below", typeA, []dnsmessage.Resource{at("x."+name, "192.0.2.1", 300)}, ""},
		{"the other family", typeA, []dnsmessage.Resource{at(name, "2001:db8::1", 300)}, ""},
		{"the other family again", typeAAAA, []dnsmessage.Resource{at(name, "192.0.2.1", 300)}, ""},
		{"a chain that leads elsewhere", typeA, []dnsmessage.Resource{cname(name, "b.test", 300), at("c.test", "192.0.2.1", 300)}, ""},
		{"an address beside a chain", typeA, []dnsmessage.Resource{chain[0], at(name, "192.0.2.1", 300)}, ""},
		{"an address of 3 bytes", typeA, []dnsmessage.Resource{odd(name, typeA, 3), cname("b.test", "c.test", 300)}, ""},
		{"an address of 5 bytes", typeA, []dnsmessage.Resource{odd(name, typeA, 5)}, ""},
		{"an address of 15 bytes", typeAAAA, []dnsmessage.Resource{odd(name, typeAAAA, 15), cname("b.test", "c.test", 300)}, ""},
		{"a loop", typeA, []dnsmessage.Resource{cname(name, "b.test", 300), cname("b.test", name, 300), at(name, "192.0.2.1", 300)}, ""},
	} {
		t.Run(tc.title, func(t *testing.T) {
			f := newFixture(t)
			f.asks(name, tc.kind)
			f.hears(name, tc.kind, tc.answers...)
			if tc.want == "" && f.addresses() != 0 {
				t.Errorf("%d addresses were learned, want none", f.addresses())
			}
			for _, addr := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"} {
				want := ""
				if strings.Contains(" "+tc.want+" ", " "+addr+" ") {
					want = name
				}
				f.expect(addr, want)
			}
		})
	}
}

// TestForgedAnswers is about answers that a pod or an attacker forges. The pod has
// sent a query for the A records of api.example.test; each case changes one property
// of the genuine answer.
func TestForgedAnswers(t *testing.T) {
	const name = "api.example.test"
	evil := at(name, "192.0.2.66", 300)
	good := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, Response: true},
		Questions: []dnsmessage.Question{{Name: named(name), Type: typeA, Class: dnsmessage.ClassINET}},
		Answers:   []dnsmessage.Resource{evil},
	}
	with := func(change func(m *dnsmessage.Message)) []byte {
		m := good
		m.Questions = []dnsmessage.Question{good.Questions[0]}
		change(&m)
		return udp(dns, podAt+":4000", pack(m))
	}
	truth := pack(good)
	for _, tc := range []struct {
		title  string
		packet []byte
		want   result // counted once; empty if no answer is counted
	}{
		{"the genuine answer", udp(dns, podAt+":4000", truth), learned},
		{"the genuine answer, from the pod behind the Service", udp("10.0.9.9:5353", podAt+":4000", truth), learned},

		{"another ID", with(func(m *dnsmessage.Message) { m.ID = 8 }), unsolicited},
		{"another port", udp(dns, podAt+":4001", truth), unsolicited},
		{"another address of the pod", udp("[fd00::10]:53", "["+podAt6+"]:4000", truth), unsolicited},
		{"another pod", udp(dns, otherAt+":4000", truth), unsolicited},
		{"a pod of another node", udp(dns, "10.0.0.3:4000", truth), ""},
		{"from the pod itself", udp(podAt+":4000", dns, truth), ""},
		{"by TCP", tcp(dns, podAt+":4000", 0, true, prefixed(truth)), unsolicited},
		{"another name", with(func(m *dnsmessage.Message) { m.Questions[0].Name = named("www.example.test") }), unsolicited},
		{"a name below", with(func(m *dnsmessage.Message) { m.Questions[0].Name = named("x." + name) }), unsolicited},
		{"the other family", with(func(m *dnsmessage.Message) { m.Questions[0].Type = typeAAAA }), unsolicited},
		{"another type", with(func(m *dnsmessage.Message) { m.Questions[0].Type = typeHTTPS }), other},
		{"another class", with(func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), other},
		{"another operation", with(func(m *dnsmessage.Message) { m.OpCode = 5 }), other},
		{"no question", with(func(m *dnsmessage.Message) { m.Questions = nil }), malformed},
		{"two questions", with(func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }), malformed},
		{"a query", with(func(m *dnsmessage.Message) { m.Response = false }), ""},
		{"truncated by the resolver", with(func(m *dnsmessage.Message) { m.Truncated = true }), truncated},
		{"no such name", with(func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError }), negative},
		{"failure", with(func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeServerFailure }), negative},
		{"a record in another class", with(func(m *dnsmessage.Message) {
			r := evil
			r.Header.Class = dnsmessage.ClassCHAOS
			m.Answers = []dnsmessage.Resource{r}
		}), empty},
		{"a record in another section", with(func(m *dnsmessage.Message) {
			m.Answers, m.Additionals, m.Authorities = nil, m.Answers, m.Answers
		}), empty},
		{"not all of the records", udp(dns, podAt+":4000", truth[:len(truth)-1]), malformed},
		{"not a message", udp(dns, podAt+":4000", []byte("hello")), malformed},
		{"nothing", udp(dns, podAt+":4000", nil), malformed},
		{"a fragment", fragment(udp(dns, podAt+":4000", truth)), unreadable},
		{"a truncated packet", udp(dns, podAt+":4000", truth)[:60], unreadable},
	} {
		t.Run(tc.title, func(t *testing.T) {
			f := newFixture(t)
			f.asks(name, typeA)
			f.Observe(tc.packet)
			if tc.want != learned {
				f.expect("192.0.2.66", "")
			}
			for _, r := range results {
				want := 0
				if r == tc.want {
					want = 1
				}
				f.answered(r, want)
			}
			if tc.want == learned || tc.want == empty {
				return // the pod has its answer
			}
			f.hears(name, typeA, at(name, "192.0.2.1", 300))
			f.expect("192.0.2.1", name)
			for _, pod := range []string{podAt6, otherAt} {
				if got := f.Names(ip(pod), ip("192.0.2.66")); got != nil {
					t.Errorf("%s knows 192.0.2.66 as %v", pod, *got)
				}
			}
		})
	}
}

// fragment makes an IPv4 packet the first fragment of a longer one.
func fragment(b []byte) []byte {
	b[6] |= 0x20
	return b
}

func TestUnsolicitedAnswers(t *testing.T) {
	f := newFixture(t)
	f.hears("api.example.test", typeA, at("api.example.test", "192.0.2.1", 300))
	f.answered(unsolicited, 1)

	f.asks("api.example.test", typeA)
	f.now = f.now.Add(queryLifetime)
	f.hears("api.example.test", typeA, at("api.example.test", "192.0.2.1", 300))
	f.answered(unsolicited, 2)

	f.learns("api.example.test", at("api.example.test", "192.0.2.2", 300))
	f.hears("api.example.test", typeA, at("api.example.test", "192.0.2.1", 300)) // the second answer
	f.answered(unsolicited, 3)
	f.expect("192.0.2.1", "")
	f.expect("192.0.2.2", "api.example.test")
}

// TestQueriesOfOtherTypes has queries that are not for addresses; their answers may
// contain addresses nevertheless.
func TestQueriesOfOtherTypes(t *testing.T) {
	for _, kind := range []dnsmessage.Type{typeHTTPS, dnsmessage.TypeSRV, dnsmessage.TypeALL} {
		t.Run(kind.String(), func(t *testing.T) {
			f := newFixture(t)
			f.asks("api.example.test", kind)
			f.hears("api.example.test", kind, at("api.example.test", "192.0.2.1", 300))
			f.hears("api.example.test", typeA, at("api.example.test", "192.0.2.1", 300))
			f.expect("192.0.2.1", "")
		})
	}
	f := newFixture(t)
	root := pack(dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("."), Type: typeA, Class: dnsmessage.ClassINET}}})
	f.Observe(udp(podAt+":4000", dns, root))
	f.Observe(udp(podAt+":4000", dns, []byte("hello")))
	if got := testutil.ToFloat64(f.metrics.queries); got != 0 {
		t.Errorf("%v queries counted, want 0", got)
	}
}

// TestQueriesOfBothFamilies has two pending queries that differ only in their type.
func TestQueriesOfBothFamilies(t *testing.T) {
	f := newFixture(t)
	f.asks("api.example.test", typeA)
	f.asks("api.example.test", typeAAAA)
	f.hears("api.example.test", typeAAAA, at("api.example.test", "2001:db8::1", 300))
	f.hears("api.example.test", typeA, at("api.example.test", "192.0.2.1", 300))
	f.expect("2001:db8::1", "api.example.test")
	f.expect("192.0.2.1", "api.example.test")
}

func TestTTLBounds(t *testing.T) {
	const name = "api.example.test"
	for _, tc := range []struct {
		title   string
		answers []dnsmessage.Resource
		want    time.Duration // without the grace period
	}{
		{"five minutes", []dnsmessage.Resource{at(name, "192.0.2.1", 300)}, 5 * time.Minute},
		{"none", []dnsmessage.Resource{at(name, "192.0.2.1", 0)}, 0},
		{"short", []dnsmessage.Resource{at(name, "192.0.2.1", 1)}, time.Second},
		{"too long", []dnsmessage.Resource{at(name, "192.0.2.1", 1<<31-1)}, MaxTTL},
		{"invalid", []dnsmessage.Resource{at(name, "192.0.2.1", 1<<31)}, 0},
		{"smallest at the address", []dnsmessage.Resource{cname(name, "b.test", 900), at("b.test", "192.0.2.1", 300)}, 5 * time.Minute},
		{"smallest at the first CNAME", []dnsmessage.Resource{cname(name, "b.test", 300), cname("b.test", "c.test", 600), at("c.test", "192.0.2.1", 900)}, 5 * time.Minute},
		{"smallest at the last CNAME", []dnsmessage.Resource{cname(name, "b.test", 900), cname("b.test", "c.test", 300), at("c.test", "192.0.2.1", 900)}, 5 * time.Minute},
		{"smaller at another record", []dnsmessage.Resource{at(name, "192.0.2.2", 100), at(name, "192.0.2.1", 300)}, 5 * time.Minute},
	} {
		t.Run(tc.title, func(t *testing.T) {
			f := newFixture(t)
			f.learns(name)
			f.asks(name, typeA)
			f.hears(name, typeA, tc.answers...)
			f.now = f.now.Add(tc.want + Grace - 1)
			f.expect("192.0.2.1", name)
			f.now = f.now.Add(1)
			f.expect("192.0.2.1", "")
		})
	}
}

// TestMaximumChain has a chain of the maximum length and a longer one.
func TestMaximumChain(t *testing.T) {
	for links, want := range map[int]string{maxChain: "n0.test", maxChain + 1: ""} {
		t.Run(fmt.Sprintf("%d CNAMEs", links), func(t *testing.T) {
			f := newFixture(t)
			var answers []dnsmessage.Resource
			for i := range links {
				answers = append(answers, cname(fmt.Sprintf("n%d.test", i), fmt.Sprintf("n%d.test", i+1), 300))
			}
			answers = append(answers, at(fmt.Sprintf("n%d.test", links), "192.0.2.1", 300))
			f.asks("n0.test", typeA)
			f.hears("n0.test", typeA, answers...)
			f.expect("192.0.2.1", want)
		})
	}
}

func TestAddressWithSeveralNames(t *testing.T) {
	f := newFixture(t)
	f.learns("a.test", at("a.test", "192.0.2.1", 100))
	f.learns("B.test", at("B.test", "192.0.2.1", 300))
	f.expect("192.0.2.1", "a.test b.test")
	f.now = f.now.Add(100*time.Second + Grace)
	f.expect("192.0.2.1", "b.test")
	f.now = f.now.Add(200 * time.Second)
	f.expect("192.0.2.1", "")
}

// TestLifetimeBeginsAgainAtEachAnswer: the latest answer counts, whatever is left of an earlier
// lifetime. An answer without the address does not shorten it.
func TestLifetimeBeginsAgainAtEachAnswer(t *testing.T) {
	f := newFixture(t)
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	f.now = f.now.Add(200 * time.Second)
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	f.now = f.now.Add(300*time.Second + Grace - 1)
	f.expect("192.0.2.1", "a.test")
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	f.learns("a.test", at("a.test", "192.0.2.2", 0))
	f.now = f.now.Add(100 * time.Second)
	f.expect("192.0.2.1", "a.test")
	f.learns("a.test", at("a.test", "192.0.2.1", 10))
	f.now = f.now.Add(10*time.Second + Grace - 1)
	f.expect("192.0.2.1", "a.test")
	f.now = f.now.Add(1)
	f.expect("192.0.2.1", "")
}

// TestPointerChangesWithNames: the evaluator remembers results by this pointer.
func TestPointerChangesWithNames(t *testing.T) {
	f := newFixture(t)
	at1, at2 := ip("192.0.2.1"), ip("192.0.2.2")
	f.learns("a.test", at("a.test", "192.0.2.1", 300), at("a.test", "192.0.2.2", 300))
	first := f.Names(ip(podAt), at1)
	if f.Names(ip(podAt), at2) != first {
		t.Error("two addresses of one name have different Names")
	}
	f.learns("a.test", at("a.test", "192.0.2.1", 600))
	if f.Names(ip(podAt), at1) != first {
		t.Error("Names changed with the TTL")
	}
	f.learns("b.test", at("b.test", "192.0.2.1", 100))
	both := f.Names(ip(podAt), at1)
	if both == first || f.Names(ip(podAt), at1) != both {
		t.Error("Names did not change once with a second name")
	}
	f.now = f.now.Add(100*time.Second + Grace)
	if got := f.Names(ip(podAt), at1); got != first || names(both) != "a.test b.test" {
		t.Errorf("after expiry Names is %q, and the earlier value is %q", names(got), names(both))
	}
	if f.Names(ip(podAt), at2) != first {
		t.Error("Names of another address changed")
	}
}

func TestPointerStaysWhenLifetimeIsExtended(t *testing.T) {
	f := newFixture(t)
	f.learns("a.test", at("a.test", "192.0.2.1", 100))
	f.learns("b.test", at("b.test", "192.0.2.1", 300))
	both := f.Names(ip(podAt), ip("192.0.2.1"))
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	f.now = f.now.Add(200 * time.Second)
	if got := f.Names(ip(podAt), ip("192.0.2.1")); got != both {
		t.Errorf("another pointer, with %q", names(got))
	}
}

func TestNamesDoesNotAllocate(t *testing.T) {
	f := newFixture(t)
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	f.learns("b.test", at("b.test", "192.0.2.1", 300))
	for _, addr := range []netip.Addr{ip("192.0.2.1"), ip("192.0.2.2")} {
		if n := testing.AllocsPerRun(100, func() { f.Names(ip(podAt), addr) }); n != 0 {
			t.Errorf("%v allocations for %v, want 0", n, addr)
		}
	}
}

func TestPodsLearnSeparately(t *testing.T) {
	f := newFixture(t)
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	for pod, want := range map[string]string{podAt: "a.test", podAt6: "a.test", otherAt: "", "10.0.0.3": ""} {
		t.Run(pod, func(t *testing.T) {
			if got := names(f.Names(ip(pod), ip("192.0.2.1"))); got != want {
				t.Errorf("it knows 192.0.2.1 as %q, want %q", got, want)
			}
		})
	}
}

func TestKeep(t *testing.T) {
	learn := func(f *fixture) { f.learns("a.test", at("a.test", "192.0.2.1", 300)) }
	for _, tc := range []struct {
		title string
		keep  []string
		want  string
	}{
		{"the same", []string{podAt + " pod", podAt6 + " pod"}, "a.test"},
		{"one address less", []string{podAt + " pod"}, "a.test"},
		{"another pod", []string{otherAt + " other"}, ""},
		{"none", nil, ""},
		{"a new pod at the address", []string{podAt + " new"}, ""},
		{"another pod at the address", []string{podAt + " other", otherAt + " other"}, ""},
	} {
		t.Run(tc.title, func(t *testing.T) {
			f := newFixture(t)
			learn(f)
			f.keep(tc.keep...)
			f.expect("192.0.2.1", tc.want)
		})
	}

	f := newFixture(t)
	learn(f)
	f.keep()
	if got := f.addresses(); got != 0 {
		t.Errorf("%d addresses are known without a pod", got)
	}
	learn(f)
	f.keep(podAt + " pod")
	f.expect("192.0.2.1", "") // nothing was learned meanwhile, and nothing was restored
}

func TestNameWithManyAddresses(t *testing.T) {
	f := newFixture(t)
	var answers []dnsmessage.Resource
	for i := range 1000 {
		answers = append(answers, at("a.test", fmt.Sprintf("192.0.%d.%d", i/250, i%250), 300))
	}
	f.learns("a.test", answers...)
	for _, a := range answers {
		f.expect(netip.AddrFrom4(a.Body.(*dnsmessage.AResource).A).String(), "a.test")
	}
	f.evictions("address", 0)
}

// TestLeastRecentlyUsedAddressIsEvicted has a pod learn one address above the bound.
func TestLeastRecentlyUsedAddressIsEvicted(t *testing.T) {
	f := newFixture(t)
	f.Observe(udp(otherAt+":4000", dns, question(7, "other.test", typeA)))
	f.Observe(udp(dns, otherAt+":4000", reply(7, "other.test", typeA, at("other.test", "192.0.2.1", 300))))

	addr := func(i int) string { return fmt.Sprintf("198.18.%d.%d", i/250, i%250) }
	for i := range MaxAddresses {
		f.learns("a.test", at("a.test", addr(i), 300))
	}
	f.expect(addr(0), "a.test") // which counts as a use
	f.learns("a.test", at("a.test", addr(MaxAddresses), 300))
	f.expect(addr(1), "")
	for _, i := range []int{0, 2, MaxAddresses} {
		f.expect(addr(i), "a.test")
	}
	f.evictions("address", 1)
	if got := f.addresses(); got != MaxAddresses+1 {
		t.Errorf("%d addresses are known, want %d and one of the other pod", got, MaxAddresses)
	}
	if names(f.Names(ip(otherAt), ip("192.0.2.1"))) != "other.test" {
		t.Error("the other pod has forgotten its address")
	}

	f.now = f.now.Add(300*time.Second + Grace) // expired addresses are removed first, and not counted as evicted
	f.learns("a.test", at("a.test", "192.0.2.1", 300))
	f.evictions("address", 1)
	if got := f.addresses(); got != 2 {
		t.Errorf("%d addresses are known, want 2", got)
	}
}

func TestNameThatExpiresFirstIsEvicted(t *testing.T) {
	f := newFixture(t)
	for i := range maxNames + 1 {
		ttl := uint32(300)
		if i == 3 {
			ttl = 200
		}
		name := fmt.Sprintf("n%d.test", i)
		f.learns(name, at(name, "192.0.2.1", ttl))
	}
	known := " " + f.knows("192.0.2.1") + " "
	if strings.Contains(known, " n3.test ") || !strings.Contains(known, " n64.test ") || strings.Count(known, "test") != maxNames {
		t.Errorf("the pod knows the address as %s", known)
	}
	f.evictions("address", 1)
}

func TestQueriesAreBounded(t *testing.T) {
	f := newFixture(t)
	ask := func(id int) { f.Observe(udp(podAt+":4000", dns, question(uint16(id), "a.test", typeA))) }
	hear := func(id int) { f.Observe(udp(dns, podAt+":4000", reply(uint16(id), "a.test", typeA))) }
	for id := range maxQueries + 1 {
		ask(id)
	}
	f.evictions("query", 1)
	hear(0)
	f.answered(unsolicited, 1)
	hear(1)
	hear(maxQueries)
	f.answered(empty, 2)

	f.now = f.now.Add(queryLifetime) // all pending queries expire
	for id := range maxQueries {
		ask(10000 + id)
	}
	f.evictions("query", 1)
}

func TestIPv6Packets(t *testing.T) {
	f := newFixture(t)
	f.Observe(udp("["+podAt6+"]:4000", "[fd00::10]:53", question(7, "a.test", typeAAAA)))
	f.Observe(udp("[fd00::10]:53", "["+podAt6+"]:4000", reply(7, "a.test", typeAAAA, at("a.test", "2001:db8::1", 300))))
	f.expect("2001:db8::1", "a.test")
}

func TestIncompletePacketsAreCounted(t *testing.T) {
	f := newFixture(t)
	f.Observe(nil)
	f.Observe(fragment(udp(dns, podAt+":4000", nil)))
	f.answered(unreadable, 2)
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 200 {
				addr := fmt.Sprintf("192.0.2.%d", i)
				f.learns("a.test", at("a.test", addr, 300))
				if got := f.knows(addr); got != "a.test" && got != "" {
					t.Errorf("%s is known as %q", addr, got)
				}
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			f.keep(otherAt + " other")
			f.keep(podAt+" pod", otherAt+" other")
			f.addresses()
		}
	})
	wg.Wait()
}

func TestConfigValidate(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Now") || !strings.Contains(err.Error(), "Registerer") {
		t.Errorf("an empty Config: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := New(Config{Now: time.Now, Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(reg, "netpol_dns_messages_total"); err != nil || n != len(results)+1 {
		t.Errorf("%d kinds of messages before the first one, %v; want %d", n, err, len(results)+1)
	}
}
