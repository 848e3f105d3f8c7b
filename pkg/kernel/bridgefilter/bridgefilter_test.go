package bridgefilter

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

// kernel is a fake table that can refuse writes.
type kernel struct {
	*knftables.Fake

	mu     sync.Mutex
	err    error
	writes int
}

func (k *kernel) Run(ctx context.Context, tx *nft.Transaction) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	if k.err != nil {
		return k.err
	}
	replayed := k.NewTransaction()
	tx.Replay(replayed)
	err := k.Fake.Run(ctx, replayed)
	if knftables.IsNotFound(err) {
		return unix.ENOENT
	}
	return err
}

// refuse makes writes fail with err, or succeed if it is nil.
func (k *kernel) refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// count returns the number of writes.
func (k *kernel) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// state decodes the table. Without its chain it returns the zero state.
func (k *kernel) state(t *testing.T) (got state) {
	t.Helper()
	rules, err := k.ListRules(t.Context(), preroutingChain)
	if knftables.IsNotFound(err) {
		return state{}
	} else if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../../docs/nftables.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules {
		// As nft prints it.
		if line := strings.Replace(rule.Rule, framesCounter, `"`+framesCounter+`"`, 1); !strings.Contains(string(document), "\t\t"+line+"\n") {
			t.Errorf("docs/nftables.md does not have the rule %s", line)
		}
	}
	elements, err := k.ListElements(t.Context(), "set", otherPortsSet)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elements {
		got.otherPorts = append(got.otherPorts, e.Key[0])
	}
	slices.Sort(got.otherPorts)
	got.filters = len(rules) == 1
	return got
}

func (s state) equal(o state) bool {
	return s.filters == o.filters && slices.Equal(s.otherPorts, o.otherPorts)
}

// started returns a running Filter and its table.
func started(t *testing.T) (*Filter, *kernel) {
	t.Helper()
	k := &kernel{Fake: knftables.NewFake(knftables.BridgeFamily, TableName)}
	f := newFilter(k, prometheus.NewRegistry())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return f, k
}

func TestBridgesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := started(t)
		f.Set(false, []string{"vnet0"})
		time.Sleep(2 * verifyInterval)
		if n := k.count(); n > 0 {
			t.Errorf("%d writes without a bridge of pods", n)
		}
		for _, want := range []state{
			{true, nil},
			{true, []string{"vnet0", "vnet1"}},
			{true, []string{`vnet"*`}},
			{false, []string{`vnet"*`}},
			{false, nil},
		} {
			f.Set(want.filters, want.otherPorts)
			synctest.Wait()
			if got := k.state(t); !got.equal(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		if n := testutil.ToFloat64(f.failures); n != 0 {
			t.Errorf("%v failures counted", n)
		}
		before := k.count()
		f.Set(false, []string{})
		synctest.Wait()
		if k.count() != before {
			t.Error("the same ports were written again")
		}
	})
}

// A table that another process removed is written again.
func TestRemovedTableIsWrittenAgain(t *testing.T) {
	for name, wait := range map[string]func(*Filter){
		"after a while":            func(*Filter) { time.Sleep(verifyInterval) },
		"at once, if that is seen": (*Filter).Verify,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, k := started(t)
				f.Set(true, []string{"vnet0"})
				synctest.Wait()
				tx := k.NewTransaction()
				tx.Delete(&knftables.Table{})
				if err := k.Fake.Run(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
				wait(f)
				synctest.Wait()
				if got := k.state(t); !got.equal(state{true, []string{"vnet0"}}) {
					t.Errorf("got %v", got)
				}
			})
		})
	}
}

func TestRefusedWriteIsCountedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := started(t)
		k.refuse(errors.New("no such expression"))
		f.Set(true, nil)
		time.Sleep(2 * verifyInterval)
		synctest.Wait()
		if n := testutil.ToFloat64(f.failures); n != 3 {
			t.Errorf("%v failures counted, want 3: the change and two retries", n)
		}
		k.refuse(nil)
		time.Sleep(verifyInterval)
		synctest.Wait()
		if got := k.state(t); !got.filters {
			t.Errorf("after a retry: %v", got)
		}
	})
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := New(reg); err != nil {
		t.Fatal(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
