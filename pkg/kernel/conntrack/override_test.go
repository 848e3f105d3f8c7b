package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// fakeOverrides has the overrides of a kernel.
type fakeOverrides struct {
	mu     sync.Mutex // guards the maps and calls against Run
	denied map[packet.Class]bool
	closed map[End]bool
	again  map[End]bool
	calls  int
	ended  int // calls that end overrides of an earlier agent

	fails  error
	onCall func()
}

// withOverrides makes b use overrides.
func withOverrides(b *Blocker) *fakeOverrides {
	f := &fakeOverrides{denied: make(map[packet.Class]bool), closed: make(map[End]bool), again: make(map[End]bool)}
	b.overrideKernel = func(_ context.Context, o Overrides) error {
		if f.fails != nil {
			return f.fails
		}
		f.apply(o)
		if f.onCall != nil {
			f.onCall()
		}
		return nil
	}
	return f
}

func (f *fakeOverrides) apply(o Overrides) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if o.Complete {
		f.ended++
	}
	for _, c := range o.Denied {
		f.denied[c] = true
	}
	for _, c := range o.Ended {
		delete(f.denied, c)
	}
	for _, e := range o.Closed {
		f.closed[e] = true
	}
	for _, e := range o.Opened {
		delete(f.closed, e)
	}
	for _, e := range o.Again {
		f.again[e] = true
	}
	for _, e := range o.Marked {
		delete(f.again, e)
	}
}

// drops reports whether the kernel drops packets of e.
func (f *fakeOverrides) drops(e entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, _ := e.first()
	return e.mark&testMark != 0 || f.denied[classOf(p).public()] ||
		f.closed[End{Addr: p.Src.Addr()}] || f.closed[End{Addr: p.Dst.Addr(), Ingress: true}]
}

// counts returns how many classes and ends are overridden, and how often overrides have changed.
func (f *fakeOverrides) counts() (denied, closed, calls int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.denied), len(f.closed), f.calls
}

// endsAgain returns the ends whose packets are decided again.
func (f *fakeOverrides) endsAgain() []End {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.again))
}

func (f *fakeOverrides) closes(e End) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed[e]
}

func denyPort(port uint16) Evaluator {
	return func(p packet.Packet, _ bool) Verdict {
		if p.Dst.Port() == port {
			return Block
		}
		return Unblock
	}
}

// What is denied is dropped before anything is listed, however many connections there are, and until
// entries of packets that were accepted before are marked, too.
func TestDeniedClassesAreDroppedBeforeTheyAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := running(t)
		o := withOverrides(b)
		f.edit(func() {
			for i := range 100 {
				f.add(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
			}
			f.add(packet.UDP, "10.0.0.7:1", "10.0.1.1:54")
		})
		b.Recheck()
		time.Sleep(2 * minPassInterval)
		synctest.Wait()
		dumps := 0
		f.edit(func() { dumps = f.dumps })
		_, _, before := o.counts()
		o.onCall = func() {
			f.edit(func() {
				if _, _, calls := o.counts(); f.dumps != dumps && calls == before+1 {
					t.Error("the table was listed first")
				}
			})
		}
		b.Set(denyPort(53), Change{Addrs: addrs("10.0.0.7")})
		for round := range 5 {
			if round == 2 {
				f.edit(func() { f.add(packet.UDP, "10.0.0.7:101", "10.0.1.1:53") })
			}
			synctest.Wait()
			for i, e := range f.copy() {
				if want := i != 100; o.drops(e) != want {
					t.Fatalf("packets of connection %d are dropped: %v, want %v", i, !want, want)
				}
			}
			time.Sleep(againAfter / 5)
		}
		time.Sleep(2 * againAfter)
		synctest.Wait()
		if denied, _, _ := o.counts(); denied != 0 {
			t.Errorf("%d overrides remain", denied)
		}
		for i, m := range f.marks() {
			if want := i != 100; m != 0 != want {
				t.Errorf("connection %d has the mark %#x", i, m)
			}
		}
	})
}

// An end is closed before its connections, which no one has evaluated yet, are listed.
func TestClosedEndsAreDroppedBeforeTheyAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := running(t)
		o := withOverrides(b)
		f.edit(func() {
			f.add(packet.UDP, "10.0.0.7:1", "10.0.1.1:53")
			f.add(packet.ICMP, "10.0.0.7", "10.0.1.1")
			f.add(packet.TCP, "10.0.1.1:1", "10.0.0.7:80")
		})
		pod := addrs("10.0.0.7")
		end := End{Addr: pod[0]}
		listed := false
		f.onList = func(filter, int) {
			if !listed && !o.closes(end) {
				t.Error("the table is listed before the end is closed")
			}
			listed = true
		}
		deny := func(p packet.Packet, _ bool) Verdict {
			if p.Src.Addr() == pod[0] {
				return Block
			}
			return Unblock
		}
		b.Set(deny, Change{Addrs: pod, Opened: pod, Closed: []End{end}})
		time.Sleep(2 * againAfter)
		synctest.Wait()
		_, closed, calls := o.counts()
		if marks := f.marks(); closed != 0 || marks[0] != testMark || marks[1] != testMark || marks[2] != 0 {
			t.Errorf("%d closed ends, marks %#x", closed, marks)
		}
		// It is closed already, so a change of something else closes nothing.
		b.Set(deny, Change{Addrs: addrs("10.0.1.1"), Closed: []End{end}})
		time.Sleep(2 * againAfter)
		synctest.Wait()
		if _, _, now := o.counts(); now != calls {
			t.Errorf("%d calls for an end that was closed before", now-calls)
		}
		b.Set(always(Unblock, nil), Change{Addrs: pod})
		time.Sleep(minInterval)
		synctest.Wait()
		b.Set(deny, Change{Addrs: pod, Closed: []End{end}})
		time.Sleep(minInterval)
		synctest.Wait()
		if !o.closes(end) {
			t.Error("the end is not closed again")
		}
	})
}

// What is allowed again before it is marked is not dropped.
func TestOverridesEndWithTheChangeThatAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := running(t)
		o := withOverrides(b)
		f.edit(func() { f.add(packet.UDP, "10.0.0.7:1", "10.0.1.1:53") })
		b.Recheck()
		time.Sleep(2 * minPassInterval)
		pod := addrs("10.0.0.7")
		end := End{Addr: pod[0]}
		for range 10 {
			b.Set(always(Block, nil), Change{Addrs: pod, Closed: []End{end}})
			time.Sleep(minInterval)
			synctest.Wait()
			if !o.drops(f.copy()[0]) {
				t.Fatal("a denied connection passes")
			}
			b.Set(always(Unblock, nil), Change{Addrs: pod})
			time.Sleep(minInterval)
			synctest.Wait()
			if e := f.copy()[0]; o.drops(e) {
				t.Fatalf("an allowed connection is dropped: mark %#x", e.mark)
			}
		}
	})
}

// What is allowed again, or denied by more classes than can be overridden, or selected for the first time,
// is decided packet by packet before the table is listed, until the connections are marked.
func TestEndsAreDecidedAgainBeforeTheyAreListed(t *testing.T) {
	pod := addrs("10.0.0.7")
	from := End{Addr: pod[0]}
	for _, tt := range []struct {
		name     string
		classes  int
		before   Verdict // without it the change is the first
		evaluate Evaluator
		change   Change
		again    []End
		marks    uint32
	}{
		{"allowed again", 2, Block, always(Unblock, nil), Change{Addrs: pod}, []End{from}, 0},
		{"too many classes", maxDenied + 2, Unblock, always(Block, nil), Change{Addrs: pod}, []End{from}, testMark},
		{"newly selected", 2, Unselected, always(Block, nil), Change{Addrs: pod, Opened: pod}, []End{from}, testMark},
		{"newly selected by a Deny of everything", 2, Unselected, always(Block, nil), Change{Addrs: pod, Opened: pod, Closed: []End{from}}, nil, testMark},
		{"an interface", 2, Unblock, always(Unblock, nil), Change{Links: []string{"cali1"}}, []End{{Link: "cali1"}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, f := running(t)
				o := withOverrides(b)
				f.edit(func() {
					for i := range tt.classes {
						f.add(packet.UDP, "10.0.0.7:1", fmt.Sprintf("10.1.%d.%d:53", i>>8, i&255))
					}
				})
				b.Set(always(tt.before, nil), Change{All: true})
				b.Recheck()
				time.Sleep(2*minPassInterval + lateAfter + time.Second) // at no time of a pass
				listed := false
				onList := func(filter, int) {
					f.edit(func() { f.onList, listed = nil, true })
					if got := o.endsAgain(); !slices.Equal(got, tt.again) {
						t.Errorf("when the table is listed, packets of %v are decided again, want %v", got, tt.again)
					}
				}
				f.edit(func() { f.onList = onList })
				b.Set(tt.evaluate, tt.change)
				if len(tt.change.Links) > 0 {
					b.Recheck()
				}
				time.Sleep(2 * minPassInterval)
				synctest.Wait()
				if !listed || len(o.endsAgain()) > 0 {
					t.Errorf("listed: %v, still decided again: %v", listed, o.endsAgain())
				}
				for i, m := range f.marks() {
					if m != tt.marks {
						t.Fatalf("connection %d has the mark %#x, want %#x", i, m, tt.marks)
					}
				}
			})
		})
	}
}

// An end that becomes suspect during a listing, which has passed its connections already, is decided again
// until a later one ends.
func TestChangesDuringAListingOutlastIt(t *testing.T) {
	b, f := newFake(t)
	for i := range 2 * pieceLen {
		f.add(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), fmt.Sprintf("10.0.1.%d:53", i%2))
	}
	if err := runApply(t, b, always(Block, nil), Change{All: true}); err != nil {
		t.Fatal(err)
	}
	o := withOverrides(b)
	pod := addrs("10.0.0.7")
	f.onList = func(_ filter, listed int) {
		if listed == 10 {
			b.Set(always(Unblock, nil), Change{Addrs: pod})
		}
	}
	if err := runPass(t, b, always(Block, nil)); err != nil {
		t.Fatal(err)
	}
	if got, want := o.endsAgain(), []End{{Addr: pod[0]}}; !slices.Equal(got, want) {
		t.Errorf("after the listing %v are decided again, want %v", got, want)
	}
	f.onList = nil
	if err := b.listWork(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := o.endsAgain(); len(got) > 0 || f.marks()[0] != 0 {
		t.Errorf("%v are decided again, mark %#x", got, f.marks()[0])
	}
}

// A tenant's change with very many connections does not delay what another's change denies: that is
// dropped before the requests that remain of the first.
func TestOneTenantDoesNotDelayTheOther(t *testing.T) {
	b, f := newFake(t)
	const crowd = 8 * pieceLen
	for i := range crowd {
		f.add(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
	}
	f.add(packet.TCP, "10.0.0.8:1", "10.0.1.2:80")
	if err := runApply(t, b, always(Unblock, nil), Change{All: true}); err != nil {
		t.Fatal(err)
	}
	b.schedule.wanted = 0
	b.unfiltered[unix.AF_INET] = false
	o := withOverrides(b)
	victim := f.rows[crowd]
	before := f.writes
	f.onChange = func(f *fakeTable) {
		switch f.writes - before {
		case 10:
			b.Set(denyBoth, Change{Addrs: addrs("10.0.0.8")})
		case 2 * pieceLen:
			if !o.drops(victim) {
				t.Error("after two more pieces of the first change, the second is not in force")
			}
		}
	}
	if err := runApply(t, b, denyPort(53), Change{Addrs: addrs("10.0.0.7")}); err != nil {
		t.Fatal(err)
	}
	if err := b.listWork(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for i, m := range f.marks() {
		if m != testMark {
			t.Fatalf("connection %d is not marked", i)
		}
	}
}

func denyBoth(packet.Packet, bool) Verdict { return Block }

// While another agent writes the rules, nothing can be overridden: marks decide as soon as they can.
func TestMarksFollowWithoutOverrides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := running(t)
		o := withOverrides(b)
		o.fails = errors.New("another agent holds the table")
		f.edit(func() { f.add(packet.UDP, "10.0.0.7:1", "10.0.1.1:53") })
		b.Recheck()
		time.Sleep(2 * minPassInterval)
		b.Set(always(Block, nil), Change{Addrs: addrs("10.0.0.7"), Closed: []End{{Addr: netip.MustParseAddr("10.0.0.7")}}})
		time.Sleep(minInterval)
		synctest.Wait()
		if marks := f.marks(); marks[0] != testMark {
			t.Errorf("marks %#x", marks)
		}
	})
}

// More classes than can be overridden: packets of the rest are decided again before the table is listed.
func TestTooManyClassesAreDecidedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // however slow the machine is
		b, f := newFake(t)
		const count = maxDenied + 2*pieceLen
		for i := range count {
			f.add(packet.UDP, "10.0.0.7:1", fmt.Sprintf("10.1.%d.%d:%d", i>>16, i>>8&255, 1+i&255))
		}
		f.add(packet.UDP, "10.0.0.7:2", "10.9.9.9:53")
		if err := runApply(t, b, always(Unblock, nil), Change{All: true}); err != nil {
			t.Fatal(err)
		}
		o := withOverrides(b)
		b.schedule.wanted = 0
		listed := 0
		f.onList = func(asked filter, _ int) {
			if asked.mask != 0 {
				return
			}
			listed++
			if listed == 1 && !o.drops(f.rows[count]) && len(o.endsAgain()) == 0 {
				t.Error("the whole table is listed before the last connection is denied")
			}
		}
		if err := runApply(t, b, always(Block, nil), Change{Addrs: addrs("10.0.0.7")}); err != nil {
			t.Fatal(err)
		}
		if denied, _, _ := o.counts(); denied != maxDenied {
			t.Errorf("%d classes are overridden, want %d", denied, maxDenied)
		}
	})
}

// The overrides of an earlier agent end once, after the first pass after which they can be ended.
func TestOverridesOfAnEarlierAgentEndAfterAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := running(t)
		o := withOverrides(b)
		o.fails = errors.New("the table is not in place yet")
		f.edit(func() { f.add(packet.UDP, "10.0.0.7:1", "10.0.0.8:53") })
		b.Set(always(Block, nil), Change{All: true})
		synctest.Wait()
		o.fails = nil
		for range 3 {
			b.Recheck()
			time.Sleep(3 * minPassInterval)
			synctest.Wait()
		}
		if o.ended != 1 {
			t.Errorf("ended %d times, want once", o.ended)
		}
	})
}
