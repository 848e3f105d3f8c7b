package conntrack

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

func TestBudget(t *testing.T) {
	const atMost = 500 * time.Millisecond
	start := time.Unix(1700000000, 0)
	var b budget
	spend := func(at, took, want time.Duration) {
		t.Helper()
		if got := b.spend(start.Add(at), took, atMost); got != want {
			t.Errorf("a check of %v that ends after %v is followed by a pause of %v, want %v", took, at, got, want)
		}
	}

	spend(0, burst, 0)
	spend(0, 10*time.Millisecond, pauseFactor*10*time.Millisecond)
	spend(30*time.Second, 10*time.Millisecond, 0) // a tenth of that time has refilled the budget
	spend(30*time.Second, time.Minute, atMost/pauseFactor*pauseFactor)
	spend(50*time.Second, 0, 0) // a check of one minute does not delay later ones by ten
}

// Checks that take long because other processes have the CPU use nothing up, and no pause follows them.
func TestBusyMachine(t *testing.T) {
	for _, tt := range []struct {
		name   string
		busy   bool
		pauses bool
	}{{"the thread has the CPU", false, true}, {"other processes have it", true, false}} {
		synctest.Test(t, func(t *testing.T) {
			b, f := newFake(t)
			if tt.busy {
				b.cpuTime = func() time.Duration { return 0 }
			}
			f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
			f.onList = func(filter, int) { time.Sleep(burst) }
			for _, v := range []Verdict{Block, Unblock, Block} {
				b.Set(always(v, nil), Change{All: true})
				if err := b.sync(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			if b.schedule.paused(time.Now()) != tt.pauses {
				t.Errorf("%s: pauses after three changes: %v", tt.name, !tt.pauses)
			}
			b.timer.Stop()
		})
	}
}

// A check of connections that the kernel cannot filter is followed by a pause of seconds, once the budget
// is used up, but a change does not wait for its end.
func TestAChangeEndsALongPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const listing = 300 * time.Millisecond
		b, f := newFake(t)
		f.filtering = map[uint8]filtering{unix.AF_INET6: ignored}
		f.add(packet.TCP, "[fd00::1]:1", "[fd00::2]:80")
		f.onList = func(filter, int) { time.Sleep(listing) }
		ctx, stop := context.WithCancel(testContext(t))
		defer synctest.Wait()
		defer stop()
		go b.Run(ctx)
		addrs := []netip.Addr{netip.MustParseAddr("fd00::2")}
		verdicts := []Verdict{Block, Unblock}
		b.Set(always(Unblock, nil), Change{All: true})
		for i := range 40 { // more than the budget allows
			time.Sleep(time.Second)
			b.Set(always(verdicts[i%2], nil), Change{Addrs: addrs})
		}

		for i := range 6 {
			time.Sleep(time.Second)
			b.Set(always(verdicts[i%2], nil), Change{Addrs: addrs})
			time.Sleep(listing + maxPause + listing + minInterval) // a check of earlier connections may have begun
			synctest.Wait()
			if blocked := f.marks()[0] != 0; blocked != verdicts[i%2].blocks() {
				t.Errorf("change %d: blocked is %v", i, blocked)
			}
		}
	})
}

func TestThreadTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, asked := threadTime(), 0
	for ; threadTime() == before && asked < 1e6; asked++ { // asking uses the CPU
	}
	if asked == 1e6 {
		t.Errorf("the thread has used %v, and no more after it has asked a million times", before)
	}
}
