package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// world is the state that a model of policies evaluates: labels of addresses, and which pods of this
// node policies select in each direction. The pods of this node have numbers below 4.
type world struct {
	labels          map[netip.Addr]int
	ingress, egress map[netip.Addr]bool
	addrs           []netip.Addr
}

func newWorld() world {
	w := world{labels: map[netip.Addr]int{}, ingress: map[netip.Addr]bool{}, egress: map[netip.Addr]bool{}}
	for i := range 8 {
		w.addrs = append(w.addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}))
	}
	for i := range 8 {
		w.addrs = append(w.addrs, netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+i)))
	}
	return w
}

func (w world) clone() world {
	w.labels, w.ingress, w.egress = maps.Clone(w.labels), maps.Clone(w.ingress), maps.Clone(w.egress)
	return w
}

// evaluate returns the Evaluator of the current world.
func (w world) evaluate() Evaluator {
	w = w.clone()
	return func(p packet.Packet, _ bool) Verdict {
		src, dst := p.Src.Addr(), p.Dst.Addr()
		sum := w.labels[src] + 2*w.labels[dst] + int(p.Dst.Port())
		switch {
		case !w.egress[src] && !w.ingress[dst]:
			return Unselected
		case w.egress[src] && sum%3 == 0, w.ingress[dst] && sum%4 == 0:
			return Block
		case w.ingress[dst] && sum%4 == 1:
			return Keep
		}
		return Unblock
	}
}

// evaluation returns the verdict on the connection of p. Either end may have opened a connection that
// was picked up, so that gets the stricter verdict of both directions.
func evaluation(evaluate Evaluator, p packet.Packet, pickedUp bool) Verdict {
	verdicts := []Verdict{evaluate(p, false)}
	if pickedUp {
		verdicts = append(verdicts, evaluate(packet.Packet{Src: p.Dst, Dst: p.Src, Proto: p.Proto}, false))
	}
	for _, v := range []Verdict{Block, Keep, Unblock} {
		if slices.Contains(verdicts, v) {
			return v
		}
	}
	return Unselected
}

// life is a random sequence of events on a node.
type life struct {
	t      *testing.T
	random *rand.Rand
	world  world
	b      *Blocker
	f      *fakeTable
	o      *fakeOverrides
	port   uint16
	want   map[string]bool // whether a connection is blocked, by tuple
	closed map[class]time.Time
}

// connect opens a connection that evaluate allows. The agent does not see it if its class is
// remembered. The returned function creates the entry.
func (l *life) connect(evaluate Evaluator) func() {
	pool := l.world.addrs[:8]
	if l.random.IntN(3) == 0 {
		pool = l.world.addrs[8:]
	}
	src, dst := pool[l.random.IntN(len(pool))], pool[l.random.IntN(len(pool))]
	l.port++
	p := packet.Packet{
		Src:   netip.AddrPortFrom(src, 1024+l.port),
		Dst:   netip.AddrPortFrom(dst, uint16(80+l.random.IntN(4))),
		Proto: []packet.Proto{packet.TCP, packet.UDP, packet.SCTP}[l.random.IntN(3)],
	}
	pickedUp := p.Proto == packet.TCP && l.random.IntN(3) == 0
	v := evaluation(evaluate, p, pickedUp)
	if !v.unblocks() {
		return func() {}
	}
	if pickedUp && v == Unblock {
		l.b.Accepted(p, true)
	} else if until := l.closed[classOf(p)]; v == Unblock && (until.Before(time.Now()) || p.Proto == packet.SCTP) {
		l.b.Accepted(p, false)
		l.closed[classOf(p)] = time.Now().Add(l.b.acceptedFor)
	}
	return func() {
		l.f.edit(func() {
			e := l.f.add(p.Proto, p.Src.String(), p.Dst.String())
			e.pickedUp = pickedUp
			l.want[string(e.key.tuple)] = false
		})
	}
}

// change changes the world and returns the Change.
func (l *life) change() (c Change) {
	for range 1 + l.random.IntN(2) {
		addr := l.world.addrs[l.random.IntN(len(l.world.addrs))]
		c.Addrs = append(c.Addrs, addr)
		isLocal := addr.AsSlice()[len(addr.AsSlice())-1] <= 4
		switch l.random.IntN(4) {
		case 0:
			if isLocal {
				l.world.ingress[addr] = !l.world.ingress[addr]
				if l.world.ingress[addr] {
					c.Answered = append(c.Answered, addr)
				}
			}
		case 1:
			if isLocal {
				l.world.egress[addr] = !l.world.egress[addr]
				if l.world.egress[addr] {
					c.Opened = append(c.Opened, addr)
				}
			}
		default:
			l.world.labels[addr]++
		}
	}
	c.All = l.random.IntN(20) == 0
	// Remembered verdicts on these addresses are forgotten.
	maps.DeleteFunc(l.closed, func(k class, _ time.Time) bool {
		return c.All || slices.Contains(c.Addrs, addrOf(k.src)) || slices.Contains(c.Addrs, addrOf(k.dst))
	})
	return c
}

// expect records the expected state of the connections.
func (l *life) expect() {
	evaluate := l.world.evaluate()
	l.f.edit(func() {
		for _, e := range l.f.rows {
			p, _ := e.first()
			switch v := evaluation(evaluate, p, e.pickedUp); {
			case v.blocks():
				l.want[string(e.key.tuple)] = true
			case v.unblocks():
				l.want[string(e.key.tuple)] = false
			}
		}
	})
}

func (l *life) verify(step int) {
	l.t.Helper()
	l.f.edit(func() {
		for _, e := range l.f.rows {
			p, _ := e.first()
			// No override is left, and none drops what is allowed.
			if blocked := l.o.drops(e); blocked != l.want[string(e.key.tuple)] {
				l.t.Fatalf("step %d: %v is blocked: %v, want %v", step, p, blocked, !blocked)
			}
		}
	})
}

// Random connections begin and end, including those of remembered classes, which the agent does not
// see, and those of pods that no policy selects. A second after each change all marks are those that
// a pass would set.
func TestChecksDoWhatPassesDo(t *testing.T) {
	for _, tt := range []struct {
		name      string
		filtering map[uint8]filtering
		room      int
		pause     time.Duration
		passes    float64 // limit, in addition to one in minDrift
	}{
		{"a kernel that filters", nil, maxKnown, time.Second, 2},
		{"no filter for IPv6", map[uint8]filtering{unix.AF_INET6: inverted}, maxKnown, time.Second, 2},
		{"no filters", map[uint8]filtering{unix.AF_INET: ignored, unix.AF_INET6: ignored}, maxKnown, time.Second, 2},
		{"no room for all classes", nil, 20, minPassInterval + time.Second, 1 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				synctest.Test(t, func(t *testing.T) {
					b, f := newFake(t)
					f.filtering, b.known, b.acceptedFor = tt.filtering, newKnownClasses(tt.room), 30*time.Second
					l := life{
						t: t, random: rand.New(rand.NewPCG(seed, 1)), world: newWorld(), b: b, f: f, o: withOverrides(b),
						want: map[string]bool{}, closed: map[class]time.Time{},
					}
					_, ctx := ktesting.NewTestContext(t)
					ctx, cancel := context.WithCancel(ctx)
					ended := make(chan error)
					go func() { ended <- b.Run(ctx) }()
					defer func() {
						cancel()
						if err := <-ended; err != nil {
							t.Error(err)
						}
					}()
					began := time.Now()
					b.Set(l.world.evaluate(), Change{All: true})
					time.Sleep(2 * minPassInterval)
					for step := range 150 {
						for range l.random.IntN(4) {
							l.connect(l.world.evaluate())()
						}
						if len(f.rows) > 40 {
							f.edit(func() { f.rows = slices.Delete(f.rows, 0, l.random.IntN(20)) })
						}
						l.changeAmong()
						l.expect()
						time.Sleep(tt.pause + time.Duration(l.random.IntN(3))*time.Second)
						synctest.Wait()
						l.expect()
						l.verify(step)
					}
					lasted := time.Since(began)
					if got := testutil.ToFloat64(b.metrics.ran(taskPass, nil)); got > tt.passes+float64(lasted/minDrift) {
						t.Errorf("%v passes in %v", got, lasted)
					}
				})
			}
		})
	}
}

// changeAmong changes the world just after packets of some connections were decided. Their entries
// appear, or the agent learns of them, only after the table was listed.
func (l *life) changeAmong() {
	before := l.world.evaluate()
	var entries []func()
	for range l.random.IntN(4) {
		entries = append(entries, l.connect(before))
	}
	change := l.change()
	l.b.Set(l.world.evaluate(), change)
	synctest.Wait()
	time.Sleep(time.Duration(l.random.IntN(100)) * time.Millisecond)
	for range l.random.IntN(4) {
		entries = append(entries, l.connect(before))
	}
	for _, add := range entries {
		add()
	}
}

// If the kernel refuses a change, a pass repeats it.
func TestFailedCheckLeadsToAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := newFake(t)
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- b.Run(ctx) }()
		b.Set(always(Unblock, nil), Change{All: true})
		time.Sleep(2 * minPassInterval)
		p := packet.Packet{Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.0.0.2:80"), Proto: packet.TCP}
		b.Accepted(p, false)
		f.edit(func() {
			f.add(packet.TCP, p.Src.String(), p.Dst.String())
			f.refused = errors.New("not permitted")
		})
		b.Set(always(Block, nil), Change{Addrs: []netip.Addr{p.Dst.Addr()}})
		time.Sleep(time.Second)
		f.edit(func() { f.refused = nil })
		time.Sleep(minPassInterval)
		synctest.Wait()
		if got := f.marks()[0]; got != testMark {
			t.Errorf("mark %#x, want %#x", got, testMark)
		}
		cancel()
		<-ended
	})
}

// A pass keeps a remembered class even if it has no connection then: the kernel may open one without
// asking the agent.
func TestAPassKeepsRememberedClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := newFake(t)
		b.acceptedFor = 30 * time.Second
		server := Change{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
		apply := func(v Verdict) {
			if err := runApply(t, b, always(v, nil), server); err != nil {
				t.Fatal(err)
			}
		}
		b.Accepted(packet.Packet{Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.0.0.2:80"), Proto: packet.TCP}, false)
		time.Sleep(time.Hour)
		apply(Unblock) // a pass
		time.Sleep(b.acceptedFor)
		apply(Unblock) // a second pass
		f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80")
		apply(Block)
		if got := f.marks()[0]; got != testMark {
			t.Errorf("mark %#x, want %#x", got, testMark)
		}
		apply(Unblock)
		f.edit(func() { f.rows = nil })
		time.Sleep(2 * b.acceptedFor)
		apply(Unblock)
		if n := len(b.known.slots); n != 0 {
			t.Errorf("%d classes are known of an empty table", n)
		}
	})
}

// A check lists only the connections of classes whose verdict changed.
func TestCheckListsOnlyWhatTurned(t *testing.T) {
	b, f := newFake(t)
	deny := func(port uint16) Evaluator {
		return func(p packet.Packet, _ bool) Verdict {
			if p.Dst.Port() == port {
				return Block
			}
			return Unblock
		}
	}
	for i := range 100 {
		f.add(packet.TCP, fmt.Sprintf("10.0.1.%d:40000", i), fmt.Sprintf("10.0.0.%d:80", i%10))
	}
	if err := runApply(t, b, deny(0), Change{All: true}); err != nil {
		t.Fatal(err)
	}
	addr := func(s string) Change { return Change{Addrs: []netip.Addr{netip.MustParseAddr(s)}} }
	for _, tt := range []struct {
		name   string
		change Change
		port   uint16
		listed int
		marked int
	}{
		{"nothing turns", addr("10.0.0.3"), 81, 0, 0},
		{"none of the address", addr("10.0.9.9"), 80, 0, 0},
		{"a client of it", addr("10.0.1.13"), 80, 10, 10},
		{"a server", addr("10.0.0.4"), 80, 10, 20},
		{"the same server", addr("10.0.0.4"), 80, 0, 20},
		{"its connections were not evaluated", Change{Answered: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}, 80, 10, 30},
		{"all", Change{All: true}, 80, 70, 100},
		{"all again", Change{All: true}, 80, 0, 100},
		{"all are allowed", Change{All: true}, 0, 100, 0},
	} { // consecutive steps
		b.schedule.listings, f.listed = nil, 0
		b.unfiltered[unix.AF_INET] = false
		if err := runApply(t, b, deny(tt.port), tt.change); err != nil {
			t.Fatal(err)
		}
		marked := 0
		for _, m := range f.marks() {
			if m != 0 {
				marked++
			}
		}
		if f.listed != tt.listed || marked != tt.marked {
			t.Errorf("%s: %d connections were listed and %d are blocked, want %d and %d", tt.name, f.listed, marked, tt.listed, tt.marked)
		}
	}
}

// A change that comes when a pass is due is checked, too, because only a check lists the blocked
// connections again.
func TestAChangeDuringADuePassIsListedAgain(t *testing.T) {
	b, f := newFake(t)
	f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
	if err := runApply(t, b, always(Unblock, nil), Change{All: true}); err != nil {
		t.Fatal(err)
	}
	b.schedule.wanted, b.schedule.earliest = 1, time.Time{}

	if err := runApply(t, b, always(Block, nil), Change{Addrs: addrs("10.0.0.2")}); err != nil {
		t.Fatal(err)
	}

	if marks := f.marks(); len(b.schedule.listings) == 0 || marks[0] != testMark {
		t.Errorf("%d listings are planned and the mark is %#x, want some and %#x", len(b.schedule.listings), marks[0], testMark)
	}
}

// A change that concerns more addresses than are listed one by one needs a pass, which begins at once
// unless earlier passes have used up the budget.
func TestManyTurnAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		used time.Duration
		want uint32
	}{
		{"within the budget", burst / 2, testMark},
		{"the budget is used up", 2 * burst, 0},
	} {
		b, f := newFake(t)
		var servers []netip.Addr
		for i := range maxFiltered + 1 {
			addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})
			servers = append(servers, addr)
			f.add(packet.TCP, "10.0.0.1:1", netip.AddrPortFrom(addr, 80).String())
			f.add(packet.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 2, byte(i)}), 1).String(), netip.AddrPortFrom(addr, 80).String())
		}
		if err := runApply(t, b, always(Unblock, nil), Change{All: true}); err != nil {
			t.Fatal(err)
		}
		b.schedule.wanted = 0
		b.schedule.budget = budget{used: tt.used, at: time.Now()}

		if err := runApply(t, b, always(Block, nil), Change{Addrs: servers}); err != nil {
			t.Fatal(err)
		}

		for i, mark := range f.marks() {
			if mark != tt.want {
				t.Errorf("%s: connection %d has the mark %#x, want %#x", tt.name, i, mark, tt.want)
				break
			}
		}
		if b.schedule.wanted == 0 {
			t.Errorf("%s: no pass is planned", tt.name)
		}
	}
}

// A small table is listed once, even for a change that concerns both families and both ends of
// connections. In a larger one live connections are listed first.
func TestASmallTableIsListedOnce(t *testing.T) {
	for _, tt := range []struct{ count, listings int }{{fewEntries, 1}, {fewEntries + 1, 4}} {
		b, f := newFake(t)
		f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80")
		f.add(packet.TCP, "[fd00::1]:1", "[fd00::2]:80")
		if err := runApply(t, b, always(Unblock, nil), Change{All: true}); err != nil {
			t.Fatal(err)
		}
		b.count = func() (int, error) { return tt.count, nil }
		b.unfiltered[unix.AF_INET], b.unfiltered[unix.AF_INET6] = false, false
		f.dumps = 0

		pod := addrs("10.0.0.2", "fd00::2")
		if err := runApply(t, b, always(Block, nil), Change{Addrs: pod, Opened: pod, Answered: pod}); err != nil {
			t.Fatal(err)
		}

		if marks := f.marks(); f.dumps != tt.listings || !slices.Equal(marks, []uint32{testMark, testMark}) {
			t.Errorf("of %d connections: %d listings and marks %#x, want %d and both marked", tt.count, f.dumps, marks, tt.listings)
		}
	}
}

// A change that comes while the first piece of a pass is listed is in force for live connections before the
// next piece.
func TestAChangeIsCheckedBetweenPiecesOfAPass(t *testing.T) {
	deny := func(port uint16) Evaluator {
		return func(p packet.Packet, _ bool) Verdict {
			if p.Dst.Port() == port {
				return Block
			}
			return Unblock
		}
	}
	server := netip.MustParseAddr("10.0.0.1")
	for _, tt := range []struct {
		name    string
		blocked bool // before the pass
		denied  uint16
		want    uint32 // mark
	}{
		{"to block", false, 80, testMark},
		{"to keep blocked, which the pass was about to unblock", true, 80, testMark},
		{"to unblock, which the pass was about to block", false, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, f := newFake(t)
			first, last := 0, 3*pieceLen-1 // connections of the class whose verdict changes
			for i := range last + 1 {
				e := f.add(packet.TCP, fmt.Sprintf("10.1.%d.%d:40000", i>>8, i&0xff), "10.0.0.2:81")
				if i == first || i == last {
					e.reply, e.status = newSender(packet.TCP, "10.0.0.1:80"), statusAssured
					if tt.blocked {
						e.mark = testMark
					}
				}
			}
			before, now := deny(0), deny(tt.denied)
			if tt.denied == 0 {
				before = deny(80)
			}
			pieces := 0
			f.onList = func(asked filter, n int) {
				switch {
				case asked.end.IsValid():
				case n == pieceLen/2:
					b.Set(now, Change{Addrs: []netip.Addr{server}})
					b.Recheck()
				case n%pieceLen == 0 && n > 0:
					pieces++
					if marks := f.marks(); marks[first] != tt.want || marks[last] != tt.want && !tt.blocked {
						t.Errorf("the first and the last connection have the marks %#x and %#x before the next piece, want %#x", marks[first], marks[last], tt.want)
					}
				}
			}
			b.Set(before, Change{})
			if err := runApply(t, b, before, Change{}); err != nil {
				t.Fatal(err)
			}
			if marks := f.marks(); marks[first] != tt.want || marks[last] != tt.want || pieces != 2 {
				t.Errorf("after the pass, of %d pieces more, the first and the last connection have the marks %#x and %#x, want %#x", pieces, marks[first], marks[last], tt.want)
			}
			b.takeCalls()
			if b.schedule.wanted == 0 {
				t.Error("a recheck requested during the pass is forgotten")
			}
		})
	}
}

// A change that comes while a pass has not listed the connections that it concerns is in force for them before
// the next piece: their classes are known from the pass before, however long nothing was accepted.
func TestAChangeDuringAPassFindsClassesOfThePassBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := newFake(t)
		server := netip.MustParseAddr("10.0.0.1")
		deny := func(p packet.Packet, _ bool) Verdict {
			if p.Dst.Addr() == server {
				return Block
			}
			return Unblock
		}
		for i := range 3 * pieceLen {
			f.add(packet.TCP, fmt.Sprintf("10.1.%d.%d:40000", i>>8, i&0xff), "10.0.0.2:80")
		}
		live := f.add(packet.TCP, "10.2.0.1:40000", "10.0.0.1:80")
		live.status = statusAssured
		for range 2 {
			time.Sleep(time.Hour)
			if err := runApply(t, b, always(Unblock, nil), Change{}); err != nil {
				t.Fatal(err)
			}
			b.schedule.want(1)
		}
		pieces := 0
		f.onList = func(asked filter, n int) {
			switch {
			case asked.end.IsValid():
			case n == pieceLen/2:
				b.Set(deny, Change{Addrs: []netip.Addr{server}})
			case n%pieceLen == 0 && n > 0:
				pieces++
				if marks := f.marks(); marks[len(marks)-1] != testMark {
					t.Errorf("before piece %d the connection has the mark %#x, want %#x", pieces+1, marks[len(marks)-1], testMark)
				}
			}
		}
		time.Sleep(time.Hour)
		if err := runApply(t, b, always(Unblock, nil), Change{}); err != nil || pieces != 3 {
			t.Errorf("%d pieces, %v", pieces, err)
		}
	})
}

// A packet that is accepted late, while a connection of its denied class is listed as blocked, makes its entry
// after that listing. It is looked for.
func TestAcceptedBesideAListingOfItsClass(t *testing.T) {
	b, f := newFake(t)
	for i := range pieceLen {
		f.add(packet.TCP, fmt.Sprintf("10.1.%d.%d:40000", i>>8, i&0xff), "10.0.0.3:81")
	}
	f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80")
	f.onList = func(_ filter, n int) {
		if n == pieceLen/2 {
			b.Accepted(toServer, false)
		}
	}
	if err := runPass(t, b, denyPort(80)); err != nil {
		t.Fatal(err)
	}
	b.schedule = schedule{}
	f.onList = nil
	f.add(toServer.Proto, toServer.Src.String(), toServer.Dst.String())
	if err := runApply(t, b, denyPort(80), Change{}); err != nil {
		t.Fatal(err)
	}
	if got := f.marks()[pieceLen+1]; got != testMark {
		t.Errorf("mark %#x, want %#x", got, testMark)
	}
}

// Classes of ended connections take no room from those that a pass finds.
func TestAPassMakesRoomForNewClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := newFake(t)
		b.known.room = 5 * pieceLen
		for round := range 3 {
			f.edit(func() { f.rows = nil })
			for i := range 4 * pieceLen {
				f.add(packet.TCP, fmt.Sprintf("10.%d.%d.%d:40000", round, i>>8, i&0xff), "10.0.0.2:80")
			}
			time.Sleep(time.Hour)
			b.schedule.want(1)
			if err := runApply(t, b, always(Unblock, nil), Change{}); err != nil {
				t.Fatal(err)
			}
			last := classOf(packet.Packet{Src: netip.MustParseAddrPort(fmt.Sprintf("10.%d.0.0:1", round)), Dst: netip.MustParseAddrPort("10.0.0.2:80"), Proto: packet.TCP})
			if _, found := b.known.index[last]; !found || len(b.known.slots) != 4*pieceLen || b.known.full {
				t.Errorf("round %d: %d classes are known, want the %d that are listed; full: %v", round, len(b.known.slots), 4*pieceLen, b.known.full)
			}
		}
	})
}

// Accepted is called on the packet path.
func TestAcceptedDoesNotAllocate(t *testing.T) {
	b, _ := newFake(t)
	port := uint16(0)
	if n := testing.AllocsPerRun(2*maxAccepted, func() {
		port++
		b.Accepted(packet.Packet{
			Src:   netip.MustParseAddrPort("10.0.0.1:1"),
			Dst:   netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port),
			Proto: packet.TCP,
		}, port%2 == 0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if list, lost := b.accepted.read(); len(list) != maxAccepted || !lost {
		t.Errorf("%d classes were recorded, lost %v; want %d and true", len(list), lost, maxAccepted)
	}
}

// The connections that another agent accepts, which it does not report, are blocked by a pass.
func TestNoClassIsMissedBesideAnotherAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, f := newFake(t)
		var alone atomic.Bool
		b.alone = alone.Load
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- b.Run(ctx) }()
		b.Set(always(Unblock, nil), Change{All: true})
		expect := func(when string, after time.Duration, mark uint32) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := f.marks()[len(f.rows)-1]; got != mark {
				t.Errorf("%s: mark %#x, want %#x", when, got, mark)
			}
		}
		time.Sleep(2 * minPassInterval)
		f.edit(func() { f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:80") })
		b.Set(always(Block, nil), Change{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}})
		expect("a connection that the other agent has accepted", time.Second, testMark)
		expect("in between", 2*minPassInterval, testMark)
		f.edit(func() { f.add(packet.TCP, "10.0.0.1:2", "10.0.0.2:80") })
		alone.Store(true)
		expect("one of its last", 2*agentsInterval, testMark)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
