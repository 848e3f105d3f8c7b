package steer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
)

var update = flag.Bool("update", false, "update the golden files")

var (
	v4    = netip.MustParseAddr("10.244.1.2") // selected in the tests below
	v4b   = netip.MustParseAddr("10.244.1.3")
	v6    = netip.MustParseAddr("fd00:10:244:1::2")
	v6b   = netip.MustParseAddr("fd00:10:244:1::3")
	peer4 = netip.MustParseAddr("192.0.2.1")
	peer6 = netip.MustParseAddr("2001:db8::1")
)

func testConfig() Config {
	return Config{Queue: 100, Queues: 4, Mark: DefaultMark, BlockMark: DefaultLowerMark, Registerer: prometheus.NewRegistry(),
		Holder: handover.Holder{Started: 123456, Queue: 109}, Agents: onlyAgent{}}
}

// onlyAgent implements Agents for a node with only the agent of testConfig.
type onlyAgent struct{}

func (onlyAgent) Bound(queue uint16) bool { return queue >= 100 && queue < 110 }
func (onlyAgent) Listening() bool         { return true }
func (onlyAgent) Alone() bool             { return true }

// newFake returns a Steerer on a fake kernel, with testConfig changed by edit.
func newFake(t *testing.T, edit func(*Config)) (*Steerer, *knftables.Fake) {
	t.Helper()
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	return newOn(t, fake, edit), fake
}

// newOn is like newFake on a kernel that may already have a table.
func newOn(t *testing.T, nft knftables.Interface, edit func(*Config)) *Steerer {
	t.Helper()
	cfg := testConfig()
	if edit != nil {
		edit(&cfg)
	}
	s, err := newFakeSteerer(cfg, nft, fakeOf(t, nft))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustSync sets the desired state and syncs once.
func mustSync(t *testing.T, s *Steerer, sets Sets) {
	t.Helper()
	s.Set(sets)
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func testContext(t *testing.T) context.Context {
	_, ctx := ktesting.NewTestContext(t)
	return ctx
}

// fakeContents returns the contents of the sets in fake.
func fakeContents(fake *knftables.Fake) contents {
	fake.RLock()
	defer fake.RUnlock()
	c := contents{}
	for _, spec := range setSpecs {
		c[spec.name] = elements{}
		for _, e := range fake.Table.Sets[spec.name].Elements {
			element, _ := spec.parse(e.Key)
			c[spec.name][element] = struct{}{}
		}
	}
	return c
}

func equalContents(a, b contents) bool { return maps.EqualFunc(a, b, maps.Equal) }

func TestRulesetMatchesGoldenFiles(t *testing.T) {
	for _, tt := range []struct {
		file string
		edit func(*Config)
	}{
		{"queue.nft", nil},
		{"queue-single-sctp.nft", func(c *Config) { c.Queues, c.SCTPPerPacket = 1, true }},
		{"queue-observe-early.nft", func(c *Config) { c.ObserveQueue, c.EarlyUDP, c.Bypass = 104, EarlyOn, true }},
		{"default.nft", func(c *Config) {
			remembering(c)
			c.Share, c.OverflowQueue, c.AuditQueue, c.ObserveQueue, c.SourceCheck = DefaultShare, 105, 109, 104, true
		}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			s, fake := newFake(t, tt.edit)
			mustSync(t, s, Sets{})
			got := fake.Dump()
			file := filepath.Join("testdata", tt.file)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("the ruleset has changed (-want +got):\n%s", diff)
			}
		})
	}
}

// The image has no /etc/protocols. Without that file nft only knows the protocols whose names are
// keywords of its language.
func TestProtocolNamesAreNftKeywords(t *testing.T) {
	keywords := []string{"ah", "comp", "dccp", "esp", "icmp", "icmpv6", "sctp", "tcp", "udp", "udplite"}
	files, err := filepath.Glob("testdata/*.nft")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden files %q, %v", files, err)
	}
	named := regexp.MustCompile(`l4proto (?:!= )?(\w[\w-]*|\{[^}]*\})`)
	for _, file := range files {
		rules, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(rules), -1) {
			for _, name := range strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune("{}, ", r) }) {
				if _, err := strconv.Atoi(name); err != nil && !slices.Contains(keywords, name) {
					t.Errorf("%s: %q needs /etc/protocols", file, m[0])
				}
			}
		}
	}
}

func TestUnchangedSetsWriteNothing(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	before := fake.LastTransaction
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	if fake.LastTransaction != before {
		t.Errorf("the second sync ran\n%v", fake.LastTransaction)
	}
}

func TestOnlyElementsChangeAfterBase(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, Egress: []netip.Addr{v4}})
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
	want := "add element inet netpol-agent ingress-v6 { fd00:10:244:1::2 }\n" +
		"delete element inet netpol-agent egress-v4 { 10.244.1.2 }\n"
	if got := fake.LastTransaction.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestSetsAreNormalized(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{
		Ingress: []netip.Addr{netip.MustParseAddr("::ffff:10.244.1.2"), v4, {}},
		Egress:  []netip.Addr{netip.MustParseAddr("fe80::1%eth0")},
		Pods:    []netip.Addr{v4},
		IngressRanges: prefixes("10.244.1.9/24", "10.244.1.128/25", "10.244.0.0/16", "10.245.0.0/16",
			"::ffff:10.244.7.0/120", "fd00:10:244::/48", "fd00:10:244:1::/64"),
		Servers: []netip.AddrPort{netip.MustParseAddrPort("[::ffff:10.96.0.10]:53"), netip.AddrPortFrom(v4, 0)},
	})
	want := Sets{}.contents()
	for set, keys := range map[string][]string{
		"ingress-v4":        {"10.244.1.2/32"},
		"egress-v6":         {"fe80::1/128"},
		"pods-v4":           {"10.244.1.2/32"},
		"ingress-ranges-v4": {"10.244.0.0/16", "10.245.0.0/16"},
		"ingress-ranges-v6": {"fd00:10:244::/48"},
	} {
		for _, p := range prefixes(keys...) {
			want[set][element{prefix: p}] = struct{}{}
		}
	}
	want["resolvers-v4"][element{prefix: netip.MustParsePrefix("10.96.0.10/32"), number: 53}] = struct{}{}
	if got := fakeContents(fake); !equalContents(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

func TestPodsAreNotWrittenWithoutSteering(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Pods: []netip.Addr{v4, v6}})
	if got := fakeContents(fake); !equalContents(got, Sets{}.contents()) {
		t.Errorf("got %v, want nothing", got)
	}
}

func TestLatencyStartsAtOldestPendingChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nft := &broken{Fake: knftables.NewFake(knftables.InetFamily, TableName), err: errors.New("boom")}
		s := newOn(t, nft, nil)
		s.Set(Sets{Ingress: []netip.Addr{v4}, Since: time.Now()})
		time.Sleep(3 * time.Second)
		s.Set(Sets{Ingress: []netip.Addr{v4b}, Since: time.Now()})
		if err := s.sync(testContext(t)); err == nil {
			t.Fatal("the sync succeeded")
		}
		nft.err = nil
		for range 2 { // the second sync changes nothing
			if err := s.sync(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		want := "netpol_policy_programming_duration_seconds_sum 3\nnetpol_policy_programming_duration_seconds_count 1\n"
		text, err := testutil.CollectAndFormat(s.metrics.programming, expfmt.TypeTextPlain, "netpol_policy_programming_duration_seconds")
		if err != nil || !strings.HasSuffix(string(text), want) {
			t.Errorf("got\n%s(%v), want\n%s", text, err, want)
		}
	})
}

func TestRunLeavesTableInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, fake := newFake(t, nil)
		ctx, cancel := context.WithCancel(testContext(t))
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		s.Set(Sets{Ingress: []netip.Addr{v4}})
		time.Sleep(time.Second)
		synctest.Wait()
		want := fake.Dump()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := fake.Dump(); got != want || !strings.Contains(got, v4.String()) {
			t.Errorf("after Run the table is\n%s", got)
		}
	})
}

// Before the first desired state, Run writes nothing if there is no table, so that the first desired
// state is written at once. It rewrites the table of an earlier run, because its packets must reach the
// queues of this run.
func TestRunBeforeTheFirstDesiredState(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		t.Run(fmt.Sprintf("earlier %v", earlier), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, fake := newFake(t, nil)
				if earlier {
					mustSync(t, first, isolatedPod)
				}
				s := newOn(t, fake, func(c *Config) { c.Queues = 2 })
				ctx, cancel := context.WithCancel(testContext(t))
				done := make(chan error)
				go func() { done <- s.Run(ctx) }()
				synctest.Wait()
				switch table := fake.Table; {
				case !earlier && table != nil:
					t.Error("a table is written before the first desired state")
				case earlier && !strings.HasSuffix(table.Chains[divertChain].Rules[1].Rule, "to 100-101"):
					t.Errorf("the table of the earlier run stays as it was: %v", table.Chains[divertChain].Rules[1].Rule)
				}
				s.Set(isolatedPod)
				synctest.Wait()
				if !earlier && (fake.Table == nil || !equalContents(fakeContents(fake), isolatedPod.contents())) {
					t.Error("the first desired state is not written at once")
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestMetricsLint(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, fake := newFake(t, func(c *Config) { c.Registerer = reg })
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, Since: time.Now()})
	fake.Table.Counters[steeredCounter].Packets = knftables.PtrTo(uint64(7))
	fake.Table.Counters[forgedSourcesCounter].Packets = knftables.PtrTo(uint64(3))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	err = testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP netpol_steered_packets_total Packets that the table sent to the agent's queues. decide: also to overflow.
# TYPE netpol_steered_packets_total counter
netpol_steered_packets_total{purpose="decide"} 7
# HELP netpol_table_dropped_packets_total Packets of pods that the table drops before any policy. forged_source: the route to their source is not through the interface that they came in by. tunnel: to a tunnel of their own node. link: between pods of one bridge with link-local, broadcast or multicast addresses.
# TYPE netpol_table_dropped_packets_total counter
netpol_table_dropped_packets_total{reason="forged_source"} 3
`), "netpol_steered_packets_total", "netpol_table_dropped_packets_total")
	if err != nil {
		t.Error(err)
	}
}

// Most changes of a cluster do not change which pods are selected. They count as applied at once.
func TestEqualSetsDoNotTriggerSync(t *testing.T) {
	s, _ := newFake(t, nil)
	sets := Sets{Ingress: []netip.Addr{v4}, Since: time.Now()}
	s.Set(sets)
	if err := s.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := s.desired
	s.Set(sets)
	if s.desired != before {
		t.Error("equal sets replaced the desired state")
	}
	if got := programmed(t, s); got != 2 {
		t.Errorf("%d changes counted, want 2", got)
	}
	s.Set(Sets{Ingress: []netip.Addr{v4b}, Since: time.Now()})
	if s.desired == before || programmed(t, s) != 2 {
		t.Errorf("different sets are taken for equal or for applied (%d)", programmed(t, s))
	}
}

// interrupted calls the function during before each transaction.
type interrupted struct {
	*knftables.Fake
	during func()
}

func (i *interrupted) Run(ctx context.Context, tx *knftables.Transaction) error {
	i.during()
	return i.Fake.Run(ctx, tx)
}

// Sets may also change because interfaces change. Then Since is zero.
func TestLatencyCountsEachChangeOnce(t *testing.T) {
	first, second := []netip.Addr{v4}, []netip.Addr{v4b}
	change := func(addrs []netip.Addr) Sets { return Sets{Ingress: addrs, Since: time.Now()} }
	for name, tt := range map[string]struct {
		before, during Sets
		twice          bool // before is set again with a change
	}{
		"pending without a change, then with one":       {before: Sets{Ingress: first}, during: Sets{Ingress: first}, twice: true},
		"pending with a change, then without one":       {before: change(first), during: Sets{Ingress: first}},
		"replaced without a change while it is written": {before: change(first), during: Sets{Ingress: second}},
		"the change comes while it is written":          {before: Sets{Ingress: first}, during: change(first)},
		"another comes while it is written":             {before: Sets{Ingress: first}, during: change(second)},
	} {
		t.Run(name, func(t *testing.T) {
			fake := knftables.NewFake(knftables.InetFamily, TableName)
			nft := &interrupted{Fake: fake, during: func() {}}
			s, err := newFakeSteerer(Config{Queue: 100, Queues: 1, Mark: DefaultMark, BlockMark: DefaultLowerMark, Registerer: prometheus.NewRegistry()}, nft, fake)
			if err != nil {
				t.Fatal(err)
			}
			s.Set(tt.before)
			if tt.twice {
				s.Set(change(tt.before.Ingress))
			}
			nft.during = func() { s.Set(tt.during) }
			if err := s.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			nft.during = func() {}
			if err := s.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := programmed(t, s); got != 1 {
				t.Errorf("%d changes counted, want 1", got)
			}
		})
	}
}

// programmed returns the number of changes counted as applied.
func programmed(t *testing.T, s *Steerer) uint64 {
	t.Helper()
	var m dto.Metric
	if err := s.metrics.programming.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.Histogram.GetSampleCount()
}
