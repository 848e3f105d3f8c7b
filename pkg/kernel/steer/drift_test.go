package steer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/knftables"
)

func TestRestartKeepsElementsUntilFirstSet(t *testing.T) {
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
	tx := strings.ReplaceAll(fake.LastTransaction.String(), "flush set inet netpol-agent reopening", "")
	if strings.Contains(tx, "delete") || strings.Contains(tx, "flush set") {
		t.Errorf("the restart ran\n%s", tx)
	}
	mustSync(t, s, Sets{})
	if got := fakeContents(fake); !equalContents(got, Sets{}.contents()) {
		t.Errorf("after empty sets: %v", got)
	}
}

// broken returns err from transactions and readErr from reads.
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

func TestFailedSyncIsUnhealthyUntilNextSucceeds(t *testing.T) {
	nft := &broken{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	s := newOn(t, nft, nil)
	if err := s.Healthy(); !errors.Is(err, errNotSynced) {
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

// tamper runs a transaction of another process.
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
	"base chain deleted": func(tx *knftables.Transaction) { tx.Delete(&knftables.Chain{Name: postrouting.steer().name}) },
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
	"unknown chain added": func(tx *knftables.Transaction) { tx.Add(&knftables.Chain{Name: "theirs"}) },
}

func TestTamperedTableIsRepairedWithinVerifyInterval(t *testing.T) {
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
				if got := inOrder(fake.Dump()); got != inOrder(want) {
					t.Errorf("got\n%swant\n%s", got, want)
				}
			})
		})
	}
}

// inOrder sorts the elements in a dump, because their order is not defined.
func inOrder(dump string) string {
	lines := strings.Split(dump, "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		if strings.HasPrefix(a, "add element") && strings.HasPrefix(b, "add element") {
			return strings.Compare(a, b)
		}
		return 0
	})
	return strings.Join(lines, "\n")
}

func TestIncompatibleTableStaysUntilFirstSet(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tamper(t, fake, func(tx *knftables.Transaction) {
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Set{Name: "podips-v4", Type: "ipv4_addr"})
		tx.Add(&knftables.Chain{Name: "postrouting"})
		tx.Add(&knftables.Rule{Chain: "postrouting", Rule: "ip daddr @podips-v4 drop"})
	})
	old := fake.Dump()
	s := newOn(t, fake, nil)
	if err := s.sync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := fake.Dump(); got != old {
		t.Errorf("before the first Set the table became\n%s", got)
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

// recorder records the order of writes and reads.
type recorder struct {
	*knftables.Fake
	notes []string
}

func (d *recorder) Run(ctx context.Context, tx *knftables.Transaction) error {
	d.notes = append(d.notes, "write")
	return d.Fake.Run(ctx, tx)
}

func (d *recorder) ListAll(ctx context.Context) (map[string][]string, error) {
	d.notes = append(d.notes, "read")
	return d.Fake.ListAll(ctx)
}

func TestSetDoesNotWaitForVerification(t *testing.T) {
	nft := &recorder{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	s := newOn(t, nft, nil)
	s.commits.started()
	mustSync(t, s, Sets{})
	generation, _ := s.kernel.generation(t.Context())
	s.notified(commit{generation: generation, touched: true, port: tablePort})
	tamper(t, nft.Fake, tamperings["element added"])
	s.notified(commit{generation: generation + 1}) // like a commit to another table
	s.verified, nft.notes = time.Time{}, nil       // as if the interval had passed
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	if want := []string{"write", "read", "write"}; !slices.Equal(nft.notes, want) {
		t.Errorf("got %v, want %v", nft.notes, want)
	}
}

func TestTableIsNotReadWithoutCommits(t *testing.T) {
	nft := &recorder{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	s := newOn(t, nft, nil)
	for _, a := range []netip.Addr{v4, v4b} {
		mustSync(t, s, Sets{Ingress: []netip.Addr{a}})
	}
	s.verified, nft.notes = time.Time{}, nil
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4b}})
	if len(nft.notes) > 0 {
		t.Errorf("got %v", nft.notes)
	}
}
