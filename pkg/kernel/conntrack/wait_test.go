package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// running runs a Blocker until the test ends, and returns when its first passes are made.
func running(t *testing.T) (*Blocker, *fakeTable) {
	t.Helper()
	b, f := newFake(t)
	if b.Healthy() == nil {
		t.Error("healthy before a pass")
	}
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	b.Set(always(Unblock, nil), Change{All: true})
	time.Sleep(3 * minPassInterval)
	synctest.Wait()
	if err := b.Healthy(); err != nil {
		t.Errorf("after the first passes: %v", err)
	}
	return b, f
}

// waits starts a call of WaitMarked, and returns a function that reports whether it has ended.
func waits(t *testing.T, b *Blocker) (ended func() bool) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- b.WaitMarked(t.Context()) }()
	return func() bool {
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return true
		default:
			return false
		}
	}
}

var toServer = packet.Packet{Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.0.0.2:80"), Proto: packet.TCP}

// An entry that appears after the first check, because its packet was accepted just before, is blocked
// when WaitMarked returns: of a class that the agent has decided, and of an address that was not selected.
func TestWaitMarkedCoversLateEntries(t *testing.T) {
	for name, change := range map[string]Change{
		"decided":      {Addrs: []netip.Addr{toServer.Dst.Addr()}},
		"not selected": {Answered: []netip.Addr{toServer.Dst.Addr()}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, f := running(t)
				if change.Addrs != nil {
					b.Accepted(toServer, false)
				}
				b.Set(always(Block, nil), change)
				ended := waits(t, b)
				synctest.Wait()
				time.Sleep(soonAfter / 2)
				f.edit(func() { f.add(toServer.Proto, toServer.Src.String(), toServer.Dst.String()) })
				if ended() {
					t.Error("it ends before the entry is looked for again")
				}
				time.Sleep(2 * soonAfter)
				if !ended() {
					t.Error("it does not end")
				}
				if got := f.marks()[0]; got != testMark {
					t.Errorf("mark %#x, want %#x", got, testMark)
				}
			})
		})
	}
}

// While connections cannot be listed, no call returns, and nothing is healthy until enough passes
// are made.
func TestWaitMarkedWaitsForAPassAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := running(t)
		b.Accepted(toServer, false)
		f.edit(func() {
			f.add(toServer.Proto, toServer.Src.String(), toServer.Dst.String())
			f.refused = errors.New("not permitted")
		})
		b.Set(always(Block, nil), Change{Addrs: []netip.Addr{toServer.Dst.Addr()}})
		ended := waits(t, b)
		time.Sleep(time.Second)
		if ended() || b.Healthy() == nil {
			t.Error("it ends although the mark cannot be set")
		}
		f.edit(func() { f.refused = nil })
		time.Sleep(3 * minPassInterval)
		if !ended() {
			t.Error("it does not end")
		}
		if got := f.marks()[0]; got != testMark {
			t.Errorf("mark %#x, want %#x", got, testMark)
		}
		time.Sleep(2 * minPassInterval)
		synctest.Wait()
		if err := b.Healthy(); err != nil {
			t.Error(err)
		}
	})
}

func TestWaitMarkedWithoutAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := running(t)
		if err := b.WaitMarked(t.Context()); err != nil {
			t.Error(err)
		}
		began := time.Now()
		b.Set(always(Unblock, nil), Change{})
		if err := b.WaitMarked(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("it took %v: %v", time.Since(began), err)
		}
	})
}

// After Recheck, marks may be wrong until a pass has been made.
func TestNotHealthyUntilRechecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := running(t)
		b.Recheck()
		if b.Healthy() == nil {
			t.Error("healthy before the pass")
		}
		time.Sleep(2 * minPassInterval)
		synctest.Wait()
		if err := b.Healthy(); err != nil {
			t.Errorf("after the pass: %v", err)
		}
	})
}

// Changes without a call of WaitMarked, because another agent writes the table, take bounded memory.
func TestChangesThatAreNeverWaitedForAreBounded(t *testing.T) {
	b, _ := newFake(t)
	many := make([]netip.Addr, maxChanged)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	}
	for range 3 {
		b.Set(always(Block, nil), Change{Opened: many})
	}
	if len(b.since.Opened) > maxChanged || !b.recheck {
		t.Errorf("%d addresses are kept, and a pass is wanted: %v", len(b.since.Opened), b.recheck)
	}
}
