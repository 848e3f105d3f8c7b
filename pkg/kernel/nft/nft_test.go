package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/batch"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

const tableName = "test"

// Sets of a given size, for which the kernel chooses a hash table that never grows: while one
// grows, it lists elements twice.
var (
	most       = uint64(1 << 17)
	addresses  = &knftables.Set{Name: "addresses", Type: "ipv4_addr", Size: &most}
	addresses6 = &knftables.Set{Name: "addresses6", Type: "ipv6_addr", Size: &most}
	ranges     = &knftables.Set{Name: "ranges", Type: "ipv4_addr", Flags: []knftables.SetFlag{knftables.IntervalFlag}}
	testSets   = []*knftables.Set{addresses, addresses6, ranges}
)

// transaction returns a transaction with the changes that edit makes.
func transaction(edit func(*Transaction)) *Transaction {
	tx := &Transaction{}
	edit(tx)
	return tx
}

// newKernelTable returns an empty table with the sets in testSets. It is removed at the end of the
// test.
func newKernelTable(t *testing.T) *Table {
	t.Helper()
	needKernel(t)
	table, err := New(knftables.InetFamily, tableName, Options{Sets: testSets})
	if err != nil {
		t.Fatal(err)
	}
	run(t, table, func(tx *Transaction) {
		tx.Add(&knftables.Table{})
		for _, set := range testSets {
			tx.Add(set)
		}
	})
	t.Cleanup(func() {
		if err := table.Run(context.Background(), transaction(func(tx *Transaction) { tx.Delete(&knftables.Table{}) })); err != nil {
			t.Error(err)
		}
		table.Close()
	})
	return table
}

func run(t *testing.T, table *Table, edit func(*Transaction)) {
	t.Helper()
	if err := table.Run(t.Context(), transaction(edit)); err != nil {
		t.Fatal(err)
	}
}

// elements lists a set in the kernel.
func elements(t *testing.T, set string) []nftables.SetElement {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	s, err := conn.GetSetByName(table, set)
	if err != nil {
		t.Fatal(err)
	}
	all, err := conn.GetSetElements(s)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func element(set, key string) *knftables.Element {
	return &knftables.Element{Set: set, Key: []string{key}}
}

// firstAddresses returns n addresses of a family.
func firstAddresses(n int, ipv6 bool) []string {
	all := make([]string, 0, n)
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if ipv6 {
			a = netip.AddrFrom16([16]byte{0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
		}
		all = append(all, a.String())
	}
	return all
}

// All elements of a large node are one transaction. Its messages are short enough for the 16-bit
// length of an attribute.
func TestKernelManyElementsAreOneTransaction(t *testing.T) {
	table := newKernelTable(t)
	const n = 65_000
	all := func(op func(*Transaction, knftables.Object)) func(*Transaction) {
		return func(tx *Transaction) {
			for _, a := range firstAddresses(n, false) {
				op(tx, element("addresses", a))
			}
			for _, a := range firstAddresses(n, true) {
				op(tx, element("addresses6", a))
			}
		}
	}
	before := generation(t)
	run(t, table, all((*Transaction).Add))
	if after := generation(t); after != before+1 {
		t.Errorf("%d commits", after-before)
	}
	if got := len(elements(t, "addresses")) + len(elements(t, "addresses6")); got != 2*n {
		t.Errorf("%d elements", got)
	}
	run(t, table, all((*Transaction).Delete))
	if got := len(elements(t, "addresses")) + len(elements(t, "addresses6")); got != 0 {
		t.Errorf("%d elements are left", got)
	}
}

// generation returns the current generation of nftables.
func generation(t *testing.T) uint32 {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, 4), // struct nfgenmsg
	})
	if err != nil || len(answers) != 1 {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for kind, value := range nlattr.All(answers[0].Data[4:]) {
		if kind == unix.NFTA_GEN_ID {
			return binary.BigEndian.Uint32(value)
		}
	}
	t.Fatal("the answer has no generation")
	return 0
}

// The error names the change that the kernel refuses, and nothing is committed.
func TestKernelErrorsNameTheChange(t *testing.T) {
	table := newKernelTable(t)
	run(t, table, func(tx *Transaction) {
		for _, a := range firstAddresses(9_000, false) {
			tx.Add(element("addresses", a))
		}
		tx.Delete(element("addresses", "10.0.30.1"))
	})
	for name, tt := range map[string]struct {
		edit func(*Transaction)
		want string
		is   error
	}{
		"an element that is missing": {func(tx *Transaction) {
			for _, a := range firstAddresses(9_000, false) {
				tx.Delete(element("addresses", a))
			}
		}, "delete element addresses { 10.0.30.1 }", unix.ENOENT},
		"an interval that overlaps": {func(tx *Transaction) {
			tx.Add(element("ranges", "10.0.0.0/8"))
			tx.Add(element("ranges", "10.1.0.0/16"))
		}, "add element ranges { 10.1.0.0/16 }", nil},
		"a rule of a chain that is missing": {func(tx *Transaction) {
			tx.AddRule("none", rule.Rule{rule.Accept})
		}, "add rule none accept", unix.ENOENT},
		"a rule with a set that is missing": {func(tx *Transaction) {
			tx.Add(&knftables.Chain{Name: "c"})
			tx.AddRule("c", rule.Rule{rule.IPv4.Saddr.In("none"), rule.Accept})
		}, "add rule c ip saddr @none accept", unix.ENOENT},
		"a chain that is missing":   {func(tx *Transaction) { tx.Delete(&knftables.Chain{Name: "none"}) }, "delete chain none", unix.ENOENT},
		"a set that is missing":     {func(tx *Transaction) { tx.Delete(&knftables.Set{Name: "none"}) }, "delete set none", unix.ENOENT},
		"a counter that is missing": {func(tx *Transaction) { tx.Delete(&knftables.Counter{Name: "none"}) }, "delete counter none", unix.ENOENT},
		"several": {func(tx *Transaction) {
			tx.Delete(&knftables.Chain{Name: "none"})
			tx.Delete(&knftables.Set{Name: "none"})
		}, "delete chain none: no such file or directory, and 1 more refused", unix.ENOENT},
	} {
		t.Run(name, func(t *testing.T) {
			before := generation(t)
			err := table.Run(t.Context(), transaction(tt.edit))
			if err != nil && strings.Contains(err.Error(), "or one of the") {
				tt.want = "" // this kernel does not say which
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %v, want one of %q", err, tt.want)
			}
			if after := generation(t); after != before {
				t.Errorf("%d commits", after-before)
			}
		})
	}
	if got := len(elements(t, "addresses")); got != 8_999 {
		t.Errorf("%d elements", got)
	}
}

// A transaction that was planned before a commit of another process is refused.
func TestKernelRefusesAnotherGeneration(t *testing.T) {
	table := newKernelTable(t)
	other, err := New(knftables.InetFamily, "other", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	add := func(key string) *Transaction {
		return transaction(func(tx *Transaction) { tx.Add(element("addresses", key)) })
	}
	planned := generation(t)
	if err := table.RunAt(t.Context(), add("10.0.0.1"), planned); err != nil {
		t.Errorf("at the current generation: %v", err)
	}
	if err := table.RunAt(t.Context(), add("10.0.0.2"), planned); !errors.Is(err, ErrGeneration) {
		t.Errorf("after an own commit: %v", err)
	}
	planned = generation(t)
	run(t, other, func(tx *Transaction) { tx.Add(&knftables.Table{}); tx.Delete(&knftables.Table{}) })
	if err := table.RunAt(t.Context(), add("10.0.0.3"), planned); !errors.Is(err, ErrGeneration) {
		t.Errorf("after the commit of another table: %v", err)
	}
	if err := table.RunAt(t.Context(), add("10.0.0.4"), generation(t)); err != nil {
		t.Errorf("at the current generation after a refusal: %v", err)
	}
	if got := len(elements(t, "addresses")); got != 2 {
		t.Errorf("%d elements, want those of the two transactions that were not refused", got)
	}
	if table.Port() == 0 || table.Port() == other.Port() {
		t.Errorf("the ports are %d and %d", table.Port(), other.Port())
	}
}

// Signals interrupt system calls, but no transaction is lost or committed twice.
func TestKernelCommitsUnderSignals(t *testing.T) {
	table := newKernelTable(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Kill(os.Getpid(), unix.SIGURG) // the Go runtime ignores it
			}
		}
	}()
	before := generation(t)
	for _, a := range firstAddresses(200, false) {
		run(t, table, func(tx *Transaction) { tx.Add(element("addresses", a)) })
	}
	close(stop)
	<-stopped
	commits := generation(t) - before
	if added := len(elements(t, "addresses")); commits != 200 || added != 200 {
		t.Errorf("%d commits, %d elements", commits, added)
	}
}

// stuck is a conn whose commits wait for release.
type stuck struct {
	release chan struct{}
	commits []int // number of messages of each
}

func (s *stuck) Commit(b *batch.Batch) ([]batch.Fault, error) {
	<-s.release
	s.commits = append(s.commits, b.Messages())
	return nil, nil
}

func (s *stuck) Port() uint32 { return 1 }
func (s *stuck) Close() error { return nil }

// While another process holds nftables, Run returns when its context ends, and a second transaction
// does not overtake the first.
func TestRunReturnsWhileTheKernelIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{release: make(chan struct{})}
		table, err := New(knftables.InetFamily, tableName, Options{})
		if err != nil {
			t.Fatal(err)
		}
		table.dial = func() (conn, error) { return s, nil }
		messages := func(n int) *Transaction {
			return transaction(func(tx *Transaction) {
				for range n {
					tx.Add(&knftables.Table{})
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, want := range []string{"the kernel has not handled the transaction yet", "an earlier transaction has not ended"} {
			if err := table.Run(ctx, messages(1)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		go close(s.release)
		if err := table.Run(t.Context(), messages(2)); err != nil {
			t.Error(err)
		}
		if !slices.Equal(s.commits, []int{1, 2}) {
			t.Errorf("transactions of %v messages were committed", s.commits)
		}
	})
}

func TestWhatCannotBeWrittenIsRefused(t *testing.T) {
	hook, chainType, priority := knftables.BaseChainHook("ingress"), knftables.FilterType, knftables.BaseChainPriority("0")
	forward := knftables.ForwardHook
	for name, tt := range map[string]struct {
		edit func(*Transaction)
		want string
	}{
		"a set that was not declared":     {func(tx *Transaction) { tx.Add(&knftables.Set{Name: "none", Type: "mark"}) }, "add set none: the set is not one of Options.Sets"},
		"an element of an undeclared set": {func(tx *Transaction) { tx.Add(element("none", "1")) }, "add element none { 1 }: the set is not one of Options.Sets"},
		"an element of another type":      {func(tx *Transaction) { tx.Add(element("addresses", "fd00::1")) }, `"fd00::1" is not of type ipv4_addr`},
		"a rule as text":                  {func(tx *Transaction) { tx.Add(&knftables.Rule{Chain: "c", Rule: "accept"}) }, "such a change is not supported"},
		"a base chain without a type":     {func(tx *Transaction) { tx.Add(&knftables.Chain{Name: "c", Hook: &forward, Priority: &priority}) }, "needs a type and a priority"},
		"a base chain at an unknown hook": {func(tx *Transaction) {
			tx.Add(&knftables.Chain{Name: "c", Type: &chainType, Hook: &hook, Priority: &priority})
		}, "there is no hook ingress"},
		"a flag of sets that is not known": {func(tx *Transaction) {
			tx.Add(&knftables.Set{Name: "addresses", Flags: []knftables.SetFlag{knftables.ConstantFlag}})
		}, "constant"},
		"a map":                        {func(tx *Transaction) { tx.Add(&knftables.Map{Name: "m"}) }, "such a change is not supported"},
		"several parts of an interval": {func(tx *Transaction) { tx.Add(&knftables.Element{Set: "ranges", Key: []string{"10.0.0.0/8", "1"}}) }, "an interval has one part"},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := New(knftables.InetFamily, tableName, Options{Sets: testSets})
			if err != nil {
				t.Fatal(err)
			}
			table.dial = func() (conn, error) { return &stuck{}, nil } // a commit would hang
			if err := table.Run(t.Context(), transaction(tt.edit)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := New(knftables.InetFamily, tableName, Options{Sets: []*knftables.Set{{Name: "odd", Type: "verdict"}}}); err == nil || !strings.Contains(err.Error(), "set odd") {
		t.Errorf("a set of an unknown type: %v", err)
	}
	if _, err := New(knftables.ARPFamily, tableName, Options{}); err == nil {
		t.Error("tables of family arp are accepted")
	}
}
