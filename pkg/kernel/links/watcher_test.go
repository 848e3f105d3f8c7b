package links

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/ktesting"
)

// fake is a kernel with the links that a test sets. It fails while err is set.
type fake struct {
	mu      sync.Mutex // guards the fields below against Run
	links   Links
	err     error
	changed func()
}

func (f *fake) set(links Links) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links, f.err = links, nil
}

func (f *fake) read() (Links, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links, f.err
}

func (f *fake) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed()
}

func (f *fake) watch(ctx context.Context, changed func()) error {
	f.mu.Lock()
	f.changed = changed
	f.mu.Unlock()
	changed()
	<-ctx.Done()
	return ctx.Err()
}

func TestWatcherTracksLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		k := &fake{err: errors.New("boom")}
		var changes atomic.Int64
		w := newWatcher(Config{Changed: func() { changes.Add(1) }}, k)
		if _, _, known := w.Names(nil); known || !errors.Is(w.Healthy(), errNotRead) {
			t.Errorf("before the first read: known %v, %v", known, w.Healthy())
		}
		var waited atomic.Bool
		go func() { w.Wait(ctx); waited.Store(true) }()
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()
		if _, _, known := w.Names(nil); known || w.Healthy() == nil || changes.Load() != 0 || waited.Load() {
			t.Errorf("read fails: known %v, %v, %d changes, waited %v", known, w.Healthy(), changes.Load(), waited.Load())
		}
		k.set(Links{1: {Index: 1, Name: "eth0"}})
		time.Sleep(retryInterval)
		synctest.Wait()
		if got, _, known := w.Names(nil); !known || !slices.Equal(got, []string{"eth0"}) || w.Healthy() != nil || changes.Load() != 1 || !waited.Load() {
			t.Errorf("after the first read: %v, %v, %v, %d changes", got, known, w.Healthy(), changes.Load())
		}
		k.set(Links{1: {Index: 1, Name: "eth1"}})
		k.notify()
		time.Sleep(minInterval)
		synctest.Wait()
		if got, _, _ := w.Names(nil); !slices.Equal(got, []string{"eth1"}) || changes.Load() != 2 {
			t.Errorf("after a change: %v, %d changes", got, changes.Load())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Addresses of pods are reached through interfaces that lead to pods, whatever their network.
func TestLeadsToPods(t *testing.T) {
	prefix := netip.MustParsePrefix
	links := Links{
		1: {Index: 1, Name: "eth0", Gateway: true, OnLink: true, Networks: []netip.Prefix{prefix("192.0.2.0/24"), prefix("2001:db8::/64")}},
		2: {Index: 2, Name: "cni0", Kind: "bridge", OnLink: true, Networks: []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd77::/64"), prefix("2001:db8::/64")}},
		3: {Index: 3, Name: "cali1", Kind: "veth", OnLink: true, Hosts: []netip.Addr{netip.MustParseAddr("192.0.2.77")}},
		4: {Index: 4, Name: "net1", Kind: "veth", OnLink: true, Networks: []netip.Prefix{prefix("198.51.100.0/24")}},
	}
	w := newWatcher(Config{Exempt: []string{"net*"}}, &fake{links: links})
	if w.LeadsToPods(pod4, nil) {
		t.Error("before the first read an interface leads to pods")
	}
	if err := w.Read(); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"10.244.1.9":   true,
		"fd77::9":      true,
		"192.0.2.9":    false,
		"192.0.2.77":   true, // more specific than the uplink's network
		"2001:db8::9":  false,
		"198.51.100.9": false, // exempt
		"203.0.113.9":  false, // through the default route
	} {
		if got := w.LeadsToPods(netip.MustParseAddr(addr), []netip.Addr{pod4}); got != want {
			t.Errorf("%s is reached through an interface that leads to pods: %v, want %v", addr, got, want)
		}
	}
}

// A route for a part of a pod range says that the address is on another node, a wider one does not.
func TestLeadsAway(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	links := Links{
		1: {Index: 1, Name: "eth0", Gateway: true, OnLink: true, Hosts: []netip.Addr{addr("10.244.1.77"), addr("fd77::77")},
			Gatewayed: []netip.Prefix{prefix("10.244.0.0/16"), prefix("10.244.1.128/26"), prefix("10.244.3.0/24"), prefix("fd78::/64")}},
		2: {Index: 2, Name: "tunl0", Kind: "ipip", OnLink: true, Networks: []netip.Prefix{prefix("10.244.1.192/26")}},
		3: {Index: 3, Name: "cali1", Kind: "veth", OnLink: true, Hosts: []netip.Addr{addr("10.244.1.200"), addr("fd78::1")}},
		4: {Index: 4, Name: "cali2", Kind: "veth", OnLink: true, Networks: []netip.Prefix{prefix("10.244.1.128/26")}},
	}
	ranges := []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd77::/64"), prefix("fd78::/64")}
	w := newWatcher(Config{}, &fake{links: links})
	if w.LeadsAway(addr("10.244.1.77"), ranges, nil) {
		t.Error("before the first read a route leads away")
	}
	if err := w.Read(); err != nil {
		t.Fatal(err)
	}
	for a, want := range map[string]bool{
		"10.244.1.77":  true,
		"fd77::77":     true,
		"fd77::78":     false, // through the default route
		"10.244.1.5":   false, // through a route wider than the range
		"10.244.1.195": true,  // of a block in a tunnel
		"10.244.1.200": false, // more specific, to a pod
		"10.244.1.130": false, // another route leads to a pod
		"10.244.3.5":   false, // not in a range of the node
		"fd78::5":      true,  // the whole range
		"fd78::1":      false,
	} {
		if got := w.LeadsAway(addr(a), ranges, nil); got != want {
			t.Errorf("%s leads away: %v, want %v", a, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { w.LeadsAway(addr("10.244.1.195"), ranges, []netip.Addr{pod4}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
