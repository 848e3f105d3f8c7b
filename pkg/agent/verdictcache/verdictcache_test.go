package verdictcache

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// run runs test with a running cache, once verdicts are remembered.
func run(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		ctx := t.Context() // ends before the bubble does
		go n.cache.Run(ctx)
		time.Sleep(retryInterval + time.Millisecond)
		synctest.Wait()
		test(t, n)
	})
}

// pass advances the clock by d and waits for the cache to be idle.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestSecondConnectionIsRemembered(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		for i := range 10 {
			if !n.send(class(1)) {
				t.Fatalf("connection %d does not pass", i)
			}
		}
		if n.asked != 2 {
			t.Errorf("the agent was asked %d times, want 2", n.asked)
		}
	})
}

// An old kernel is no fault: the agent decides every connection, and policies are in force.
func TestNothingIsRememberedByAKernelThatCannot(t *testing.T) {
	n := newNode(t)
	n.kernel.missing = errors.ErrUnsupported
	if err := n.cache.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if err := n.cache.Healthy(); err != nil {
		t.Error(err)
	}
	for range 10 {
		n.send(class(1))
	}
	if n.asked != 10 {
		t.Errorf("the agent was asked %d times, want 10", n.asked)
	}
}

func TestClassesThatDoNotRepeatAreNotRemembered(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		for i := range 1000 {
			n.send(class(i))
		}
		if allowed, _ := n.kernel.sizes(); allowed != 0 {
			t.Errorf("%d classes are remembered, want 0", allowed)
		}
	})
}

func TestNothingIsRememberedBesideAnotherAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.alone = false
		ctx := t.Context()
		go n.cache.Run(ctx)
		pass(10 * retryInterval)
		// By the other agent, from a packet that waited in its queue.
		n.kernel.accepted(class(2), allowedFor)
		n.set(class(2), true)
		if n.send(class(2)) {
			t.Error("what another agent has allowed passes after a change denies it")
		}
		n.kernel.accepted(class(3), allowedFor)
		pass(retryInterval)
		if allowed, _ := n.kernel.sizes(); allowed != 0 {
			t.Error("the kernel still remembers what another agent has decided")
		}
		n.asked = 0
		for range 5 {
			n.send(class(1))
		}
		if n.asked != 5 {
			t.Errorf("the agent was asked %d times, want 5", n.asked)
		}
		n.mu.Lock()
		n.alone = true
		n.mu.Unlock()
		pass(retryInterval)
		for range 5 {
			n.send(class(1))
		}
		if n.asked != 6 {
			t.Errorf("the agent was asked %d times, want 6", n.asked)
		}
	})
}

func TestTurnedVerdictsAreForgotten(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		for _, c := range []packet.Class{class(1), class(2)} {
			n.send(c)
			n.send(c)
		}
		n.set(class(1), true)
		if n.send(class(1)) {
			t.Error("a class that is denied now passes")
		}
		asked := n.asked
		if !n.send(class(2)) || n.asked != asked {
			t.Error("a class with the same address whose decision is the same was forgotten")
		}
	})
}

// A packet was decided before the policies changed, and its verdict is not sent yet.
func TestLateVerdictsAreForgotten(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		n.send(class(1))
		d, _ := n.evaluate(class(1))
		n.late = func() {
			if n.cache.Remember(lasting(class(1), d)) {
				n.kernel.accepted(class(1), allowedFor)
			}
		}
		n.set(class(1), true)
		n.flush()
		if n.send(class(1)) {
			t.Error("a class that is denied now passes")
		}
	})
}

func TestDeniedClassesAreRememberedAfterAFewPackets(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		n.set(class(1), true)
		for range deniedAfter {
			n.send(class(1))
		}
		pass(time.Millisecond)
		for range 100 {
			if n.send(class(1)) {
				t.Fatal("a denied packet passes")
			}
		}
		if n.asked != deniedAfter {
			t.Errorf("the agent was asked %d times, want %d", n.asked, deniedAfter)
		}
		n.set(class(1), false)
		if !n.send(class(1)) {
			t.Error("a class that is allowed now does not pass")
		}
	})
}

// A pending class is not denied if a change allows it first.
func TestPendingDenialsAreEvaluatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.cache.enable(t.Context())
		n.set(class(1), true)
		for range deniedAfter {
			n.send(class(1))
		}
		n.set(class(1), false)
		n.cache.deny(t.Context())
		if !n.send(class(1)) {
			t.Error("a class that is allowed does not pass")
		}
	})
}

func TestDenialsOfAFloodAreFewCommits(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		before := n.kernel.commits
		for round := range 100 {
			for i := range 8 {
				n.set(class(round*8+i), true)
				for range deniedAfter {
					n.send(class(round*8 + i))
				}
			}
			pass(denyInterval / 10)
		}
		if commits := n.kernel.commits - before; commits > 14 { // one a second, and the ends of counted classes
			t.Errorf("%d commits in ten seconds", commits)
		}
	})
}

// After an error nothing is remembered until the kernel has forgotten all.
func TestErrors(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		n.send(class(1))
		n.send(class(1))
		n.kernel.setFails(errors.New("out of memory"), math.MaxInt)
		n.set(class(1), true)
		pass(3 * retryInterval)
		n.kernel.setFails(nil, 0)
		pass(retryInterval)
		if n.send(class(1)) {
			t.Error("a class that is denied passes although the kernel could be changed again")
		}
	})
}

// A change that the kernel refuses once is enforced when Changed returns.
func TestOneError(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		n.send(class(1))
		n.send(class(1))
		n.kernel.setFails(errors.New("out of memory"), 1)
		n.set(class(1), true)
		if n.send(class(1)) {
			t.Error("a class that is denied passes")
		}
	})
}

func TestPacketsAreCounted(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		n.set(class(2), true)
		sent := 0
		for range 100 { // across several lifetimes
			for range 5 {
				n.send(class(1))
				n.send(class(2))
				sent++
			}
			pass(time.Second)
		}
		pass(2 * countInterval)
		n.mu.Lock()
		defer n.mu.Unlock()
		if got := int(n.counted[class(1)]+n.counted[class(2)]) + n.asked; got != 2*sent {
			t.Errorf("%d packets counted or decided, want %d", got, 2*sent)
		}
		if n.asked > sent/5 {
			t.Errorf("the agent was asked for %d of %d packets", n.asked, 2*sent)
		}
	})
}

func TestPacketsAreCountedOnceByASlowKernel(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		for range 4 {
			n.kernel.setSlow(4 * sameTime)
			for range 5 {
				n.send(class(1))
			}
			pass(countInterval)
			n.kernel.setSlow(0)
			pass(countInterval)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if got := int(n.counted[class(1)]) + n.asked; got != 20 {
			t.Errorf("%d packets counted or decided, want 20", got)
		}
	})
}

// Remembers knows a class from its first count until it expires or a change removes it.
func TestRemembers(t *testing.T) {
	remembers := func(n *node, i int) (time.Duration, bool) {
		d, since, ok := n.cache.Remembers(class(i))
		if want, _ := n.evaluate(class(i)); ok && d != want {
			t.Errorf("class %d is remembered as %v, want %v", i, d.Action, want.Action)
		}
		return time.Since(since), ok
	}
	wantRemembered := func(t *testing.T, n *node, want bool) {
		t.Helper()
		for i := range 2 {
			if _, ok := remembers(n, i); ok != want {
				t.Errorf("class %d is remembered: %v, want %v", i, ok, want)
			}
		}
	}
	run(t, func(t *testing.T, n *node) {
		n.set(class(1), true)
		pass(denyInterval)
		for range deniedAfter {
			n.send(class(0))
			n.send(class(1))
		}
		wantRemembered(t, n, false)
		begin := time.Now()
		pass(countInterval)
		wantRemembered(t, n, true)
		for i := range 2 {
			if ago, _ := remembers(n, i); (ago - time.Since(begin)).Abs() > denyInterval {
				t.Errorf("class %d is remembered for %v, want %v", i, ago, time.Since(begin))
			}
		}
		pass(allowedFor)
		wantRemembered(t, n, false)

		for range deniedAfter {
			n.send(class(0))
			n.send(class(1))
		}
		pass(countInterval)
		wantRemembered(t, n, true)
		n.set(class(0), true)
		n.set(class(1), false)
		wantRemembered(t, n, false)

		n.set(class(0), false)
		n.send(class(0))
		n.send(class(0))
		pass(countInterval)
		n.kernel.setFails(errors.New("no kernel"), math.MaxInt)
		pass(countInterval)
		wantRemembered(t, n, false)
	})
}

// The cache cannot forget classes that it has not recorded, so it removes them when it finds
// them.
func TestWhatIsNotRecordedIsForgotten(t *testing.T) {
	run(t, func(t *testing.T, n *node) {
		n.kernel.accepted(class(1), time.Hour)
		pass(countInterval)
		if allowed, _ := n.kernel.sizes(); allowed != 0 {
			t.Error("the kernel still remembers it")
		}
	})
}

func TestOneAddressHasAShare(t *testing.T) {
	s := newClasses(64)
	for i := range 64 {
		c := class(i)
		c.Src = netip.MustParseAddr("10.1.0.1")
		c.Dst = netip.AddrFrom4([4]byte{10, 2, 0, byte(i)})
		s.add(c)
	}
	if len(s.entries) != 64/sharePerAddress {
		t.Errorf("one address has %d of 64 entries", len(s.entries))
	}
	if s.add(class(2)) == nil {
		t.Error("another address has no room")
	}
}

// The index by address finds exactly the classes of an address, after any additions and
// removals.
func TestClassesByAddress(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(6))}) }
		s, want := newClasses(1<<16), make(map[packet.Class]bool)
		for range 500 {
			c := packet.Class{Src: addr(), Dst: addr(), Proto: packet.UDP, Port: uint16(r.IntN(4))}
			if want[c] {
				s.remove(c)
				delete(want, c)
			} else {
				s.add(c)
				want[c] = true
			}
			a := addr()
			got := make(map[packet.Class]bool)
			for _, c := range s.withAddrs([]netip.Addr{a}, false) {
				got[c] = true
			}
			for c := range want {
				if (c.Src == a || c.Dst == a) != got[c] {
					t.Fatalf("seed %d: %v: found by %v: %v", seed, c, a, got[c])
				}
			}
			if len(got) > len(want) || len(s.withAddrs(nil, true)) != len(want) {
				t.Fatalf("seed %d: %d of %d classes", seed, len(s.withAddrs(nil, true)), len(want))
			}
		}
		for c := range want {
			s.remove(c)
		}
		if len(s.ends) != 0 || len(s.entries) != 0 {
			t.Fatalf("seed %d: not empty after all were removed", seed)
		}
	}
}
