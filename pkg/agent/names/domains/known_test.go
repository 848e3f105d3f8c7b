package domains

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// model is a simple reference implementation of known, without bounds.
type model map[netip.Addr]map[string]time.Time

func (m model) learn(text string, addr netip.Addr, until time.Time) {
	if m[addr] == nil {
		m[addr] = make(map[string]time.Time)
	}
	m[addr][text] = until
}

func (m model) find(addr netip.Addr, now time.Time) string {
	var names []string
	for text, until := range m[addr] {
		if now.Before(until) {
			names = append(names, text)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestKnownAgreesWithTheModel learns, waits, and restarts: what was saved is restored.
func TestKnownAgreesWithTheModel(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		k, m := newKnown(func() { t.Error("something was evicted") }), model{}
		restarts := 0
		for range 2000 {
			addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(20))})
			switch n := random.IntN(40); {
			case n == 0:
				saved, before := k.state(now, MaxAddresses), time.Duration(random.IntN(5))*time.Second
				now = now.Add(before)
				k, restarts = restored(t, saved, before, now), restarts+1
			case n < 14:
				text := fmt.Sprintf("n%d", random.IntN(maxNames))
				until := now.Add(time.Duration(1+random.IntN(100)) * time.Second)
				k.learn(text, addr, now, until)
				m.learn(text, addr, until)
			case n < 26:
				now = now.Add(time.Duration(random.IntN(5)) * time.Second)
			}
			found := strings.Fields(names(k.find(addr, now)))
			slices.Sort(found)
			if got, want := strings.Join(found, " "), m.find(addr, now); got != want {
				t.Fatalf("seed %d: %v is known as %q, want %q", seed, addr, got, want)
			}
		}
		k.checkCounts(t)
		if restarts == 0 {
			t.Errorf("seed %d: no restart", seed)
		}
	}
}

// TestKnownIsBounded learns more than the bounds allow.
func TestKnownIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	k := newKnown(func() {})
	for range 20000 {
		now = now.Add(time.Millisecond)
		addr := netip.AddrFrom4([4]byte{192, 0, byte(random.IntN(4)), byte(random.IntN(256))})
		k.learn(fmt.Sprintf("n%d", random.IntN(2*maxNames)), addr, now, now.Add(time.Hour))
		if names := k.find(addr, now); names == nil || len(*names) > maxNames || k.leases > MaxAddresses {
			t.Fatalf("%v is known as %v, and there are %d leases", addr, names, k.leases)
		}
	}
	if k.leases != MaxAddresses {
		t.Errorf("%d leases, want all %d", k.leases, MaxAddresses)
	}
	k.checkCounts(t)
	k.learn("last", netip.MustParseAddr("192.0.2.1"), now.Add(time.Hour), now.Add(2*time.Hour))
	k.checkCounts(t)
	if len(k.names) != 1 || len(k.addrs.elements) != 1 {
		t.Errorf("%d names of %d addresses are left, want one of one", len(k.names), len(k.addrs.elements))
	}
}

// checkCounts compares the counters with the entries.
func (k *known) checkCounts(t *testing.T) {
	t.Helper()
	leases, names := 0, make(map[string]int)
	for e := k.addrs.order.Front(); e != nil; e = e.Next() {
		for _, l := range e.Value.(*entry[netip.Addr, *address]).value.leases {
			leases++
			names[l.name.text]++
		}
	}
	if k.count() != leases || len(k.names) != len(names) || k.addrs.order.Len() != k.addrs.len() {
		t.Errorf("%d leases and %d names are counted, %d and %d are there", k.leases, len(k.names), leases, len(names))
	}
	for text, n := range names {
		if k.names[text].leases != n {
			t.Errorf("%s has %d leases, and %d are counted", text, n, k.names[text].leases)
		}
	}
}

// restored returns what a Table restores of what was saved before.
func restored(t *testing.T, saved []savedName, before time.Duration, now time.Time) *known {
	t.Helper()
	table, err := New(Config{Now: func() time.Time { return now }, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	pod, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	table.Keep(map[netip.Addr]string{other: "other"})
	table.restore([]savedPod{{Owner: "pod", Names: saved}}, before)
	table.Keep(map[netip.Addr]string{pod: "pod", other: "other"})
	return (*table.pods.Load())[pod].known
}
