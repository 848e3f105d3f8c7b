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
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/nft"
)

// kernel is a fake that can refuse writes.
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
	return k.Fake.Run(ctx, replayed)
}

// refuse has writes fail with err, or succeed if it is nil.
func (k *kernel) refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// count returns how often there was a write.
func (k *kernel) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// filtered returns the bridges that the table filters, nil if it has not all rules.
func (k *kernel) filtered(t *testing.T) []string {
	t.Helper()
	rules, err := k.ListRules(t.Context(), forwardChain)
	if knftables.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	if len(rules) != 2 {
		t.Errorf("%d rules, want one for each type of tag", len(rules))
	}
	document, err := os.ReadFile("../../docs/nftables.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules {
		// As nft prints it.
		if line := strings.Replace(rule.Rule, taggedCounter, `"`+taggedCounter+`"`, 1); !strings.Contains(string(document), "\t\t"+line+"\n") {
			t.Errorf("docs/nftables.md does not have the rule %s", line)
		}
	}
	elements, err := k.ListElements(t.Context(), "set", bridgesSet)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range elements {
		names = append(names, e.Key[0])
	}
	slices.Sort(names)
	return names
}

// started runs a Filter in the bubble of the test.
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
		time.Sleep(2 * verifyInterval)
		if n := k.count(); n > 0 {
			t.Errorf("%d writes without a bridge", n)
		}
		for _, test := range []struct{ set, want []string }{
			{[]string{"cni0"}, []string{"cni0"}},
			{[]string{"br-1", "cni0"}, []string{"br-1", "cni0"}},
			{[]string{`br"*`, "cni1"}, []string{`br"*`, "cni1"}},
			{nil, []string{}},
		} {
			f.Set(test.set)
			synctest.Wait()
			if got := k.filtered(t); !slices.Equal(got, test.want) || got == nil {
				t.Errorf("with the bridges %q these are filtered: %q", test.set, got)
			}
		}
		before := k.count()
		f.Set([]string{})
		synctest.Wait()
		if k.count() != before {
			t.Error("the same bridges were written again")
		}
	})
}

// TestRemovedTableIsWrittenAgain has another process remove the table.
func TestRemovedTableIsWrittenAgain(t *testing.T) {
	for name, wait := range map[string]func(*Filter){
		"after a while":            func(*Filter) { time.Sleep(verifyInterval) },
		"at once, if that is seen": (*Filter).Verify,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, k := started(t)
				f.Set([]string{"cni0"})
				synctest.Wait()
				tx := k.NewTransaction()
				tx.Delete(&knftables.Table{})
				if err := k.Fake.Run(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
				wait(f)
				synctest.Wait()
				if got := k.filtered(t); !slices.Equal(got, []string{"cni0"}) {
					t.Errorf("these are filtered: %q", got)
				}
			})
		})
	}
}

func TestRefusedWriteIsCountedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := started(t)
		k.refuse(errors.New("no such expression"))
		f.Set([]string{"cni0"})
		time.Sleep(2 * verifyInterval)
		synctest.Wait()
		if n := testutil.ToFloat64(f.failures); n != 3 {
			t.Errorf("%v failures counted, want that of the change and of two retries", n)
		}
		k.refuse(nil)
		time.Sleep(verifyInterval)
		synctest.Wait()
		if got := k.filtered(t); !slices.Equal(got, []string{"cni0"}) {
			t.Errorf("after a retry these are filtered: %q", got)
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
