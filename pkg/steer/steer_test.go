package steer

import (
	"context"
	"errors"
	"flag"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/knftables"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	v4    = netip.MustParseAddr("10.244.1.2") // selected in the tests below
	v4b   = netip.MustParseAddr("10.244.1.3")
	v6    = netip.MustParseAddr("fd00:10:244:1::2")
	v6b   = netip.MustParseAddr("fd00:10:244:1::3")
	peer4 = netip.MustParseAddr("192.0.2.1")
	peer6 = netip.MustParseAddr("2001:db8::1")
)

func testConfig() Config {
	return Config{Queue: 100, Queues: 4, Mark: DefaultMark, Registerer: prometheus.NewRegistry()}
}

// newFake returns a Steerer over a fake kernel, changed by edit.
func newFake(t *testing.T, edit func(*Config)) (*Steerer, *knftables.Fake) {
	t.Helper()
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	return newOn(t, fake, edit), fake
}

// newOn is newFake on a kernel that may have a past.
func newOn(t *testing.T, nft knftables.Interface, edit func(*Config)) *Steerer {
	t.Helper()
	cfg := testConfig()
	cfg.NFT = nft
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg, Capabilities{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mustSync wishes for sets and syncs once.
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

// fakeContents is what the sets of fake hold.
func fakeContents(fake *knftables.Fake) contents {
	c := contents{}
	for name, set := range fake.Table.Sets {
		c[name] = elements{}
		for _, e := range set.Elements {
			p, _ := parseElement(e.Key)
			c[name][p] = struct{}{}
		}
	}
	return c
}

func equalContents(a, b contents) bool { return maps.EqualFunc(a, b, maps.Equal) }

func TestRulesetIsTheGoldenOne(t *testing.T) {
	for _, tt := range []struct {
		file string
		edit func(*Config)
	}{
		{"queue.nft", nil},
		{"queue-bypass.nft", func(c *Config) { c.Bypass = true }},
		{"queue-single-sctp.nft", func(c *Config) { c.Queues, c.SCTPPerPacket = 1, true }},
	} {
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
		if got != string(want) {
			t.Errorf("%s: the ruleset is now\n%s", tt.file, got)
		}
	}
}

func TestUnchangedWishWritesNothing(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	before := fake.LastTransaction
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	if fake.LastTransaction != before {
		t.Errorf("the second sync ran\n%v", fake.LastTransaction)
	}
}

func TestOnlyElementsChangeOnceTheBaseStands(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, Egress: []netip.Addr{v4}})
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
	want := "add element inet kube-network-policies ingress-v6 { fd00:10:244:1::2 }\n" +
		"delete element inet kube-network-policies egress-v4 { 10.244.1.2 }\n"
	if got := fake.LastTransaction.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestWishIsNormalised(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{
		Ingress: []netip.Addr{netip.MustParseAddr("::ffff:10.244.1.2"), v4, {}},
		Egress:  []netip.Addr{netip.MustParseAddr("fe80::1%eth0")},
		Pods:    []netip.Addr{v4},
		IngressRanges: prefixes("10.244.1.9/24", "10.244.1.128/25", "10.244.0.0/16", "10.245.0.0/16",
			"::ffff:10.244.7.0/120", "fd00:10:244::/48", "fd00:10:244:1::/64"),
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
			want[set][p] = struct{}{}
		}
	}
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

func TestPodsAreNotWrittenWithoutRanges(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Pods: []netip.Addr{v4, v6}})
	if got := fakeContents(fake); !equalContents(got, Sets{}.contents()) {
		t.Errorf("got %v, want nothing", got)
	}
}

func TestRestartKeepsElementsUntilTheFirstWish(t *testing.T) {
	s, fake := newFake(t, nil)
	sets := Sets{Ingress: []netip.Addr{v4}, Egress: []netip.Addr{v6}}
	mustSync(t, s, sets)

	s = newOn(t, fake, func(c *Config) { c.Queues = 2 })
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := fakeContents(fake); !equalContents(got, sets.contents()) {
		t.Errorf("after the restart: %v, want %v", got, sets.contents())
	}
	if got := fake.Table.Chains[divertChain].Rules[1].Rule; !strings.HasSuffix(got, "to 100-101") {
		t.Errorf("the restarted agent has 2 queues and the rule is %q", got)
	}
	if tx := fake.LastTransaction.String(); strings.Contains(tx, "delete") || strings.Contains(tx, "flush set") {
		t.Errorf("the restart ran\n%s", tx)
	}
	mustSync(t, s, Sets{})
	if got := fakeContents(fake); !equalContents(got, Sets{}.contents()) {
		t.Errorf("after an empty wish: %v", got)
	}
}

// broken fails transactions while err is set, and reads while readErr is.
type broken struct {
	*knftables.Fake
	err, readErr error
}

func (b *broken) Run(ctx context.Context, tx *knftables.Transaction) error {
	if b.err != nil {
		return b.err
	}
	return b.Fake.Run(ctx, tx)
}

func (b *broken) ListAll(ctx context.Context) (map[string][]string, error) {
	if b.readErr != nil {
		return nil, b.readErr
	}
	return b.Fake.ListAll(ctx)
}

func TestFailedSyncIsUnhealthyAndMendedByTheNext(t *testing.T) {
	nft := &broken{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	s := newOn(t, nft, nil)
	if err := s.Healthy(); !errors.Is(err, errNoSync) {
		t.Errorf("before the first sync: %v", err)
	}
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})

	sets := Sets{Ingress: []netip.Addr{v4b}, Egress: []netip.Addr{v6}}
	boom := errors.New("boom")
	for _, fail := range []*error{&nft.err, &nft.readErr} {
		*fail = boom
		s.Set(sets)
		if err := s.sync(testContext(t)); !errors.Is(err, boom) || !errors.Is(s.Healthy(), boom) {
			t.Fatalf("sync: %v, healthy: %v, want boom", err, s.Healthy())
		}
		*fail = nil
	}
	mustSync(t, s, sets)
	if got := fakeContents(nft.Fake); !equalContents(got, sets.contents()) || s.Healthy() != nil {
		t.Errorf("got %v, want %v; healthy: %v", got, sets.contents(), s.Healthy())
	}
}

// tamper runs a transaction of somebody else.
func tamper(t *testing.T, fake *knftables.Fake, edit func(*knftables.Transaction)) {
	t.Helper()
	tx := fake.NewTransaction()
	edit(tx)
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

var tamperings = map[string]func(*knftables.Transaction){
	"table deleted": func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) },
	"chain flushed": func(tx *knftables.Transaction) { tx.Flush(&knftables.Chain{Name: divertChain}) },
	"rule added": func(tx *knftables.Transaction) {
		tx.Insert(&knftables.Rule{Chain: selectChain, Rule: "accept"})
	},
	"base chain deleted": func(tx *knftables.Transaction) { tx.Delete(&knftables.Chain{Name: judgeChain}) },
	"set deleted":        func(tx *knftables.Transaction) { tx.Delete(&knftables.Set{Name: "pods-v6"}) },
	"element added": func(tx *knftables.Transaction) {
		tx.Add(&knftables.Element{Set: "ingress-v4", Key: []string{"192.0.2.9"}})
	},
	"element deleted": func(tx *knftables.Transaction) {
		tx.Delete(&knftables.Element{Set: "ingress-v4", Key: []string{"10.244.1.2"}})
	},
	"odd element added": func(tx *knftables.Transaction) {
		tx.Add(&knftables.Element{Set: "ingress-ranges-v4", Key: []string{"10.0.0.1-10.0.0.9"}})
	},
	"foreign chain added": func(tx *knftables.Transaction) { tx.Add(&knftables.Chain{Name: "theirs"}) },
}

func TestTamperedTableIsRestoredWithinTheVerifyInterval(t *testing.T) {
	sets := Sets{Ingress: []netip.Addr{v4}, Egress: []netip.Addr{v6}, Pods: []netip.Addr{v4},
		IngressRanges: prefixes("10.244.1.0/24")}
	for name, edit := range tamperings {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, fake := newFake(t, nil)
				ctx, cancel := context.WithCancel(testContext(t))
				done := make(chan error, 1)
				defer func() { cancel(); <-done }()
				s.Set(sets)
				go func() { done <- s.Run(ctx) }()
				synctest.Wait()
				want := fake.Dump()

				tamper(t, fake, edit)
				time.Sleep(verifyInterval)
				synctest.Wait()
				if got := withoutHandles(fake.Dump()); got != withoutHandles(want) {
					t.Errorf("got\n%swant\n%s", got, want)
				}
			})
		})
	}
}

// withoutHandles is for tables that were written twice; the order of elements
// does not count.
func withoutHandles(dump string) string {
	lines := strings.Split(dump, "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		if strings.HasPrefix(a, "add element") && strings.HasPrefix(b, "add element") {
			return strings.Compare(a, b)
		}
		return 0
	})
	return strings.Join(lines, "\n")
}

func TestAnotherLayoutStaysUntilTheFirstWishReplacesIt(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tamper(t, fake, func(tx *knftables.Transaction) {
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Set{Name: "podips-v4", Type: "ipv4_addr"})
		tx.Add(&knftables.Chain{Name: judgeChain})
		tx.Add(&knftables.Rule{Chain: judgeChain, Rule: "ip daddr @podips-v4 drop"})
	})
	old := fake.Dump()
	s := newOn(t, fake, nil)
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := fake.Dump(); got != old {
		t.Errorf("without a wish the table became\n%s", got)
	}
	sets := Sets{Ingress: []netip.Addr{v4}}
	mustSync(t, s, sets)
	if got := fakeContents(fake); !equalContents(got, sets.contents()) {
		t.Errorf("got %v, want %v", got, sets.contents())
	}
	if tx := fake.LastTransaction.String(); !strings.Contains(tx, "delete table") || !strings.Contains(tx, "10.244.1.2") {
		t.Errorf("not replaced in one transaction, the last one is\n%s", tx)
	}
}

func TestLatencyCountsFromTheOldestUnwrittenChange(t *testing.T) {
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
		for range 2 { // the second one has nothing new
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

func TestRunLeavesTheTableInForce(t *testing.T) {
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

func TestCleanupIsIdempotent(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{})
	for range 2 {
		if err := cleanup(t.Context(), fake); err != nil {
			t.Fatal(err)
		}
		if got := fake.Dump(); got != "" {
			t.Errorf("left behind:\n%s", got)
		}
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, fake := newFake(t, func(c *Config) { c.Registerer = reg })
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}, Since: time.Now()})
	fake.Table.Counters[steeredCounter].Packets = knftables.PtrTo(uint64(7))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	err = testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP netpol_divert_info The way into the queue that is in use: queue statement or xtables target.
# TYPE netpol_divert_info gauge
netpol_divert_info{mode="queue"} 1
# HELP netpol_steered_packets_total Packets that the kernel sent towards the queues. What exceeds the queues' own counts found no agent.
# TYPE netpol_steered_packets_total counter
netpol_steered_packets_total 7
`), "netpol_divert_info", "netpol_steered_packets_total")
	if err != nil {
		t.Error(err)
	}
}
