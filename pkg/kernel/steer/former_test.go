package steer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
)

// fakeFormer is the former table. The zero value is none.
type fakeFormer struct {
	mu             sync.Mutex
	table          former
	taken, removed int
}

func (f *fakeFormer) read(context.Context) (former, error) { return f.get(), nil }

func (f *fakeFormer) take(_ context.Context, h handover.Holder) error {
	f.hold(h)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken++
	return nil
}

func (f *fakeFormer) remove(context.Context) error {
	f.set(former{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed++
	return nil
}

func (f *fakeFormer) get() former {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table
}

func (f *fakeFormer) set(table former) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table = table
}

// hold records the holder of the table.
func (f *fakeFormer) hold(h handover.Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.record.Holder = h
}

// counts returns how often the table was taken and removed.
func (f *fakeFormer) counts() (taken, removed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.taken, f.removed
}

// TestFormerTable: what happens to the own and the former table while the other agent lives, and after
// it has ended.
func TestFormerTable(t *testing.T) {
	const own, other = 300, 200
	older, newer := handover.Holder{Started: 1, Queue: other + 2}, handover.Holder{Started: 3, Queue: other + 2}
	held := func(h handover.Holder) former {
		return former{ours: true, record: handover.Record{Named: true, Holder: h}}
	}
	unnamed := former{ours: true, record: handover.Record{Queues: []uint16{other, other + 1}}}
	type state struct {
		writes uint16 // the queues of the own table, 0 if there is none
		taken  bool
		exists bool
	}
	never, both, complete := state{exists: true}, state{writes: own, exists: true}, state{writes: own}
	for _, tt := range []struct {
		name        string
		former      former
		other       bool // another agent runs
		edit        func(*member)
		closed      bool // pods wait for the first snapshot
		while, then state
	}{
		{name: "none", while: complete, then: complete},
		{name: "the upstream agent", former: former{}, other: true, while: complete, then: complete},
		{name: "an older agent", former: held(older), other: true, while: state{own, true, true}, then: complete},
		{name: "an older agent, and not all queues are bound", former: held(older), other: true,
			edit: func(a *member) { a.listening = false }, while: never, then: complete},
		{name: "an older agent, and no snapshot", former: held(older), other: true, closed: true, while: never, then: both},
		{name: "a newer agent", former: held(newer), other: true, while: never, then: complete},
		{name: "an older agent that has released the table", former: held(handover.Holder{}), other: true,
			while: state{own, true, true}, then: complete},
		{name: "an older agent stands by behind one that has ended", former: held(handover.Holder{Started: 2, Queue: 402}), other: true,
			while: state{own, true, true}, then: complete},
		{name: "an agent that is gone", former: held(older), while: complete, then: complete},
		{name: "one that is gone, and no snapshot", former: held(older), closed: true, while: both, then: both},
		{name: "one that is gone and had the same numbers", former: held(handover.Holder{Started: 1, Queue: own + 2}), while: complete, then: complete},
		{name: "an agent that records no holder", former: unnamed, other: true, while: never, then: complete},
		{name: "one that records no holder and is gone", former: unnamed, while: complete, then: complete},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, f := newMachine(), &fakeFormer{table: tt.former}
				a := m.agent(t, 2, own)
				a.former = f
				if tt.edit != nil {
					tt.edit(a)
				}
				m.bind(other, tt.other)
				if tt.closed {
					a.Close(isolatedPod)
				} else {
					a.Set(isolatedPod)
				}
				start(t, a.Steerer)
				check := func(when string, want state) {
					t.Helper()
					time.Sleep(time.Minute)
					taken, _ := f.counts()
					exists := f.get().ours
					if got := (state{m.divertsTo(), taken > 0 && exists, exists}); got != want {
						t.Errorf("%s: %+v, want %+v", when, got, want)
					}
				}
				check("both run", tt.while)
				m.bind(other, false)
				check("the other one has ended", tt.then)
				if taken, removed := f.counts(); taken > 1 || removed > 1 {
					t.Errorf("taken %d times and removed %d times", taken, removed)
				}
			})
		})
	}
}

// TestFormerAgentWithDistantNumbers: the queue numbers of the other agent are not among those that count
// for Alone. It would create its table again if that was removed.
func TestFormerAgentWithDistantNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMachine(), &fakeFormer{table: former{ours: true, record: handover.Record{Named: true, Holder: handover.Holder{Started: 1, Queue: 352}}}}
		a := m.agent(t, 2, 300)
		a.former = f
		m.bind(350, true)
		startRun(t, a.Steerer, isolatedPod)
		time.Sleep(time.Minute)
		if table := f.get(); !a.Alone() || !table.ours || table.record.Holder != a.cfg.Holder {
			t.Errorf("alone: %v, the former table is there: %v, held by %v", a.Alone(), table.ours, table.record.Holder)
		}
		m.bind(350, false)
		time.Sleep(time.Minute)
		if f.get().ours {
			t.Error("the former table is left")
		}
	})
}

// TestFormerTableThatComesBack: an agent of an earlier version that is started again takes its table,
// and creates it if it is gone. Both decide while it lives. It gets the table back when this agent ends.
func TestFormerTableThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMachine(), &fakeFormer{}
		a := m.agent(t, 2, 300)
		a.former = f
		startRun(t, a.Steerer, isolatedPod)
		time.Sleep(time.Minute)
		m.bind(200, true)
		f.set(former{ours: true, record: handover.Record{Named: true, Holder: handover.Holder{Started: 3, Queue: 202}}})
		time.Sleep(time.Minute)
		if taken, _ := f.counts(); m.divertsTo() != 300 || taken != 0 {
			t.Errorf("packets go to queue %d, and the table was taken %d times", m.divertsTo(), taken)
		}
		f.hold(handover.Holder{}) // it ends, and waits for its successor
		time.Sleep(verifyInterval)
		if holder := f.get().record.Holder; holder != a.cfg.Holder {
			t.Errorf("the released table is held by %v", holder)
		}
		a.Release() // the other one still lives
		time.Sleep(time.Second)
		if holder := f.get().record.Holder; holder != (handover.Holder{}) || a.HeldByOther() || m.divertsTo() != 300 {
			t.Errorf("while it ends, the table is held by %v, and packets go to queue %d", holder, m.divertsTo())
		}
		f.hold(handover.Holder{Started: 3, Queue: 202})
		time.Sleep(time.Second)
		if !a.HeldByOther() || m.divertsTo() != 0 {
			t.Errorf("the other one decides: known %v, packets go to queue %d", a.HeldByOther(), m.divertsTo())
		}
	})
}
