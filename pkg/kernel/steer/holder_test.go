package steer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

// machine is a node whose agents share nftables and the queue numbers.
type machine struct {
	fake  *knftables.Fake
	bound sync.Map // queue numbers

	mu         sync.Mutex
	generation uint32
}

// sharedKernel counts the commits of all agents of a machine. Otherwise an agent could miss a commit of
// another one, and regard its rules as our own.
type sharedKernel struct {
	*fakeKernel
	machine *machine
}

func (k sharedKernel) RunAt(ctx context.Context, tx *nft.Transaction, generation uint32) error {
	k.machine.mu.Lock()
	defer k.machine.mu.Unlock()
	if generation != 0 && generation != k.machine.generation {
		return nft.ErrGeneration
	}
	replayed := k.machine.fake.NewTransaction()
	tx.Replay(replayed)
	err := k.machine.fake.Run(ctx, replayed)
	if err == nil {
		k.machine.generation++
	}
	return err
}

func (k sharedKernel) generation(context.Context) (uint32, error) {
	k.machine.mu.Lock()
	defer k.machine.mu.Unlock()
	return k.machine.generation, nil
}

// read reads again if there were commits meanwhile, like netlinkKernel.
func (k sharedKernel) read(ctx context.Context, want tableLayout) (*observedState, error) {
	for {
		before, _ := k.generation(ctx)
		o, err := k.fakeKernel.read(ctx, want)
		after, _ := k.generation(ctx)
		if err != nil {
			return nil, err
		}
		if before == after {
			o.generation = before
			return o, nil
		}
	}
}

func newMachine() *machine {
	return &machine{fake: knftables.NewFake(knftables.InetFamily, TableName), generation: 1}
}

func (m *machine) Bound(queue uint16) bool {
	_, ok := m.bound.Load(queue)
	return ok
}

// bind binds or frees the queue numbers of the agent whose first number is first.
func (m *machine) bind(first uint16, yes bool) {
	for n := range uint16(3) {
		m.bound.Delete(first + n)
		if yes {
			m.bound.Store(first+n, true)
		}
	}
}

// member is an agent of a machine. It decides the packets of the queues first and first+1, and keeps
// first+2 bound.
type member struct {
	*machine
	*Steerer
	first     uint16
	listening bool
}

func (a *member) Listening() bool { return a.listening }

func (a *member) Alone() bool {
	alone := true
	a.bound.Range(func(queue, _ any) bool {
		alone = queue.(uint16)/100 == a.first/100
		return alone
	})
	return alone
}

// agent returns an agent that has bound its queues.
func (m *machine) agent(t *testing.T, started uint32, first uint16) *member {
	t.Helper()
	a := &member{machine: m, first: first, listening: true}
	m.bind(first, true)
	a.Steerer = newOn(t, m.fake, func(c *Config) {
		c.Queue, c.Queues = first, 2
		c.Holder, c.Agents = handover.Holder{Started: started, Queue: first + 2}, a
	})
	shared := sharedKernel{a.kernel.(*fakeKernel), m}
	a.table, a.kernel = shared, shared
	return a
}

// divertsTo returns the first queue to which the table sends packets, 0 if there is no table.
func (m *machine) divertsTo() uint16 {
	m.fake.RLock()
	defer m.fake.RUnlock()
	var first uint16
	if m.fake.Table != nil {
		_, to, _ := strings.Cut(m.fake.Table.Chains[divertChain].Rules[1].Rule, " to ")
		_, _ = fmt.Sscanf(to, "%d", &first)
	}
	return first
}

func (m *machine) wantDivert(t *testing.T, when string, want uint16) {
	t.Helper()
	if got := m.divertsTo(); got != want {
		t.Errorf("%s: packets go to queue %d, want %d", when, got, want)
	}
}

// unheld writes a table without a holder, with the queues 100-103.
func unheld(t *testing.T, m *machine) {
	t.Helper()
	dump, err := os.ReadFile("testdata/queue.nft")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(dump)) {
		if !strings.Contains(line, " "+holderSet+" ") {
			lines = append(lines, line)
		}
	}
	if err := m.fake.ParseDump(strings.Join(lines, "")); err != nil {
		t.Fatal(err)
	}
}

func TestWhoWritesTheTable(t *testing.T) {
	const other, own = 200, 300
	older, newer := uint32(1), uint32(3) // than the agent, which started at 2
	for _, tt := range []struct {
		name    string
		held    func(*testing.T, *machine) // writes the table of another agent
		edit    func(*machine, *member)
		nothing bool // no desired state yet
		want    uint16
		healthy bool
	}{
		{name: "no table", want: own, healthy: true},
		{name: "no table and no desired state", nothing: true, want: own},
		{name: "an older agent", held: heldBy(older, other), want: own, healthy: true},
		{name: "an older agent, and no desired state", held: heldBy(older, other), nothing: true, want: other},
		{name: "an older agent, and not all queues are bound", held: heldBy(older, other),
			edit: func(_ *machine, a *member) { a.listening = false }, want: other},
		{name: "a newer agent", held: heldBy(newer, other), want: other, healthy: true},
		{name: "an agent that started at the same time with lower numbers", held: heldBy(2, other), want: own, healthy: true},
		{name: "an agent that started at the same time with higher numbers", held: heldBy(2, 400), want: 400, healthy: true},
		{name: "a newer agent that is gone", held: heldBy(newer, other), edit: gone(other), want: own, healthy: true},
		{name: "an older agent that is gone, and no desired state", held: heldBy(older, other), edit: gone(other), nothing: true, want: own},
		{name: "an earlier agent that had the same numbers", held: heldBy(newer, own), want: own, healthy: true},
		{name: "a holder that has released the table", held: heldBy(newer, other),
			edit: func(m *machine, _ *member) { m.fake.Table.Sets[holderSet].Elements = nil }, want: own, healthy: true},
		{name: "a table without a holder", held: unheld, want: own, healthy: true},
		{name: "a table without a holder, and no desired state", held: unheld, nothing: true, want: 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine()
			if tt.held != nil {
				tt.held(t, m)
			}
			a := m.agent(t, 2, own)
			if tt.edit != nil {
				tt.edit(m, a)
			}
			if !tt.nothing {
				a.Set(isolatedPod)
			}
			if err := a.sync(testContext(t)); err != nil {
				t.Fatal(err)
			}
			m.wantDivert(t, "after a sync", tt.want)
			if err := a.Healthy(); (err == nil) != tt.healthy {
				t.Errorf("healthy: %v, want %v", err, tt.healthy)
			}
		})
	}
}

func heldBy(started uint32, first uint16) func(*testing.T, *machine) {
	return func(t *testing.T, m *machine) { mustSync(t, m.agent(t, started, first).Steerer, isolatedPod) }
}

func gone(first uint16) func(*machine, *member) {
	return func(m *machine, _ *member) { m.bind(first, false) }
}

func TestTableIsTakenOverAtOnceWithItsElements(t *testing.T) {
	m := newMachine()
	mustSync(t, m.agent(t, 1, 200).Steerer, isolatedPod)
	mustSync(t, m.agent(t, 2, 300).Steerer, isolatedPod)
	tx := m.fake.LastTransaction.String()
	for _, want := range []string{"queue flags fanout to 300-301", "flush set inet netpol-agent holder", "holder { 2 . 302 }"} {
		if !strings.Contains(tx, want) {
			t.Errorf("the transaction has no %q:\n%s", want, tx)
		}
	}
	for _, never := range []string{"delete ", "ingress-v4 {", "flush set inet netpol-agent ingress"} {
		if strings.Contains(tx, never) {
			t.Errorf("the transaction has %q:\n%s", never, tx)
		}
	}
}

func TestReleasedTableIsTakenByAnOlderAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		old, next := m.agent(t, 1, 200), m.agent(t, 2, 300)
		startRun(t, old.Steerer, isolatedPod)
		time.Sleep(time.Second)
		startRun(t, next.Steerer, isolatedPod)
		time.Sleep(time.Minute)
		m.wantDivert(t, "both run", 300)
		if !old.HeldByOther() || next.HeldByOther() {
			t.Errorf("held by another: %v for the older one and %v for the newer one", old.HeldByOther(), next.HeldByOther())
		}

		next.Release()
		time.Sleep(10 * time.Second)
		m.wantDivert(t, "the newer one ends", 200)
		if !next.HeldByOther() {
			t.Error("the newer one does not see that the table is held")
		}
		next.Set(Sets{}) // must not be written any more
		time.Sleep(time.Minute)
		if got, want := fakeContents(m.fake), isolatedPod.contents(); !equalContents(got, want) {
			t.Errorf("the sets are %v, want %v", got, want)
		}
	})
}

func TestTakenOverTableCountsAsNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		old := m.agent(t, 1, 200)
		startRun(t, old.Steerer, isolatedPod)
		time.Sleep(time.Second)
		mustSync(t, m.agent(t, 2, 300).Steerer, isolatedPod)
		running{Steerer: old.Steerer}.notify(t, true)
		time.Sleep(time.Minute)
		m.wantDivert(t, "a minute later", 300)
		if n := old.externalChanges(byNotification) + old.externalChanges(byPoll); n != 0 {
			t.Errorf("%v changes by other processes are counted", n)
		}
		if err := old.Healthy(); err != nil {
			t.Errorf("not healthy: %v", err)
		}
		m.bind(300, false)
		time.Sleep(time.Second)
		m.wantDivert(t, "the newer one has crashed", 200)
	})
}

// After agents have started, crashed and ended in any order, the newest living agent with a desired
// state holds the table, and no agent writes it any more.
func TestAnyOrderOfAgentsEndsWithOne(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { anyOrder(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func anyOrder(t *testing.T, r *rand.Rand) {
	m := newMachine()
	if r.IntN(2) == 0 {
		unheld(t, m)
	}
	var clock uint32
	type process struct {
		*member
		stop func()
		sets bool
	}
	alive := map[uint16]*process{}
	crash := func(first uint16) {
		alive[first].stop()
		m.bind(first, false)
		delete(alive, first)
	}
	for range 12 {
		first := uint16(200 + 10*r.IntN(4))
		p := alive[first]
		switch action := r.IntN(5); {
		case p == nil:
			clock += uint32(r.IntN(2))
			a := m.agent(t, clock, first)
			ctx, cancel := context.WithCancel(testContext(t))
			done := make(chan error, 1)
			go func() { done <- a.Run(ctx) }()
			alive[first] = &process{member: a, stop: func() { cancel(); <-done }}
		case action == 0:
			crash(first)
		case action == 1:
			p.Release()
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			crash(first)
		default:
			p.sets = true
			p.Set(isolatedPod)
		}
		time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
	}
	var want *process
	for _, first := range slices.Sorted(maps.Keys(alive)) {
		p := alive[first]
		p.sets = true
		p.Set(isolatedPod)
		if want == nil || p.cfg.Holder.Newer(want.cfg.Holder) {
			want = p
		}
	}
	time.Sleep(time.Minute)
	if want != nil {
		m.wantDivert(t, "at the end", want.first)
		if got := fakeContents(m.fake); !equalContents(got, isolatedPod.contents()) {
			t.Errorf("the sets are %v", got)
		}
	}
	before := m.fake.LastTransaction
	time.Sleep(time.Minute)
	if tx := m.fake.LastTransaction; tx != before {
		t.Errorf("the table is still written:\n%s", tx)
	}
	for _, first := range slices.Sorted(maps.Keys(alive)) {
		if err := alive[first].Healthy(); err != nil {
			t.Errorf("agent %d is not healthy: %v", first, err)
		}
		crash(first)
	}
}

func TestMalformedHolders(t *testing.T) {
	for _, key := range [][]string{nil, {"1"}, {"1", "2", "3"}, {"x", "2"}, {"1", "70000"}, {"4294967296", "2"}} {
		if got := parseHolder(key); got != (handover.Holder{}) {
			t.Errorf("%q is %v", key, got)
		}
	}
	if got := decodeHolder([]byte{1, 2, 3}); got != (handover.Holder{}) {
		t.Errorf("a short key is %v", got)
	}
}

// layouts are configurations whose tables have different chains or sets.
var layouts = map[string]func(*Config){
	"plain":    func(*Config) {},
	"observer": func(c *Config) { c.ObserveQueue = 104 },
	"shares":   func(c *Config) { c.Share, c.OverflowQueue = DefaultShare, 105 },
	"sources":  func(c *Config) { c.SourceCheck = true },
	"early":    func(c *Config) { c.EarlyUDP = EarlyOn },
}

func TestLayoutsChangeInPlace(t *testing.T) {
	for from, before := range layouts {
		for to, after := range layouts {
			t.Run(from+" to "+to, func(t *testing.T) {
				fresh, want := newFake(t, after)
				mustSync(t, fresh, isolatedPod)

				s, fake := newFake(t, before)
				mustSync(t, s, Sets{Ingress: []netip.Addr{v4b}, Pods: []netip.Addr{v4b}})
				mustSync(t, newOn(t, fake, after), isolatedPod)
				if diff := cmp.Diff(inOrder(want.Dump()), inOrder(fake.Dump())); diff != "" {
					t.Errorf("the table differs from a new one (-want +got):\n%s", diff)
				}
				if tx := fake.LastTransaction.String(); strings.Contains(tx, "delete table") {
					t.Errorf("the table was replaced:\n%s", tx)
				}
			})
		}
	}
}

func TestTableThatCannotBeChangedInPlaceIsReplaced(t *testing.T) {
	nft := &broken{Fake: knftables.NewFake(knftables.InetFamily, TableName)}
	mustSync(t, newOn(t, nft.Fake, layouts["observer"]), isolatedPod)
	s := newOn(t, nft, nil)
	s.Set(isolatedPod)
	nft.err = errors.New("a set of another type has this name")
	if err := s.sync(testContext(t)); err == nil {
		t.Fatal("no error")
	}
	nft.err = nil
	mustSync(t, s, isolatedPod)
	if tx := nft.LastTransaction.String(); !strings.Contains(tx, "delete table") {
		t.Errorf("the table was not replaced:\n%s", tx)
	}
}

// The base chains stay. If one is removed, the kernel drops queued packets. If one is added before the
// chain that queued a packet, the kernel sends the packet through that chain again.
func TestQueuedPacketsSurviveAHandOverToAnotherLayout(t *testing.T) {
	n := newNode(t)
	const count, port = 20, 4001
	sets := isolated(n.b)
	mustSync(t, newReal(t, nil), sets)
	l := listen(t)
	in := n.b.receive(t, false, port)
	waiting := make([]func(), count)
	for i := range waiting {
		say(t, n.a.send(t, netip.AddrPortFrom(n.b.v4, port)), fmt.Sprint(i))
		a := l.next(t)
		waiting[i] = func() { l.accept(t, a) }
	}
	names := func() map[string][]string {
		o, err := netlinkKernel{}.read(t.Context(), tableLayout{}) // expects no chains, so that it returns names
		if err != nil {
			t.Fatal(err)
		}
		return o.names
	}
	mustSync(t, newReal(t, layouts["shares"]), sets)
	shares := names()
	mustSync(t, newReal(t, layouts["plain"]), sets)
	plain := names()

	var got []string
	for _, answer := range waiting {
		answer()
		text, _ := hear(t, in)
		got = append(got, text)
	}
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != count {
		t.Errorf("%d of %d packets arrived", len(got), count)
	}
	if !slices.Contains(shares["chain"], overflowChain) || slices.Contains(plain["chain"], overflowChain) || slices.Contains(plain["set"], "sent-v4") {
		t.Errorf("the layout has not changed: %v, then %v", shares, plain)
	}
}

func TestTableIsTakenBack(t *testing.T) {
	m := newMachine()
	older := m.agent(t, 1, 200)
	mustSync(t, older.Steerer, isolatedPod)
	mustSync(t, m.agent(t, 2, 300).Steerer, isolatedPod)
	older.observed = nil // as after a notification
	mustSync(t, older.Steerer, isolatedPod)
	m.wantDivert(t, "another agent has taken over", 300)

	m.bind(300, false)
	mustSync(t, older.Steerer, isolatedPod)
	tx := m.fake.LastTransaction.String()
	if !strings.Contains(tx, "holder { 1 . 202 }") {
		t.Errorf("the table was taken back by\n%s", tx)
	}
	if n := testutil.ToFloat64(older.metrics.repairs); n != 0 {
		t.Errorf("%v repairs are counted", n)
	}
}

// overtaken is a table that another agent writes before each write by this one.
type overtaken struct {
	table
	first func()
}

func (o overtaken) RunAt(ctx context.Context, tx *nft.Transaction, generation uint32) error {
	o.first()
	return o.table.RunAt(ctx, tx, generation)
}

// If two agents have read the same table, only one of them takes it over.
func TestOnlyOneOfTwoAgentsTakesTheTableOver(t *testing.T) {
	m := newMachine()
	older, newer := m.agent(t, 1, 200), m.agent(t, 2, 300)
	newer.Set(isolatedPod)
	older.table = overtaken{older.table, sync.OnceFunc(func() {
		if err := newer.sync(testContext(t)); err != nil {
			t.Error(err)
		}
	})}
	mustSync(t, older.Steerer, isolatedPod)
	m.wantDivert(t, "both have written", 300)
	if !older.HeldByOther() || newer.HeldByOther() {
		t.Errorf("held by another agent: for the older one %v, for the newer one %v", older.HeldByOther(), newer.HeldByOther())
	}
}
