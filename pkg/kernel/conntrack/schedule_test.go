package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var names = [reasons]string{"listing", "waiter", "accepted", "agents", "pass", "routine"}

// week is a Blocker without a kernel: it does what its schedule says, and writes down when and why.
type week struct {
	schedule
	t       *testing.T
	now     time.Duration
	unknown bool                     // classes are
	another time.Duration            // until then another agent accepts packets
	used    map[string]time.Duration // by listings and passes
	pause   time.Duration            // at most, after listings
	refused time.Duration            // until then passes fail
	log     []string
}

// sunday is when a week begins.
var sunday = time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)

// event is a change, or another call, at a time.
type event struct {
	at time.Duration
	do func(w *week, now time.Time)
}

// run makes the events happen and works until a time.
func (w *week) run(events []event, until time.Duration) []string {
	for idle := 0; idle < 4; idle++ {
		next, _, ok := w.next()
		wake := next.Sub(sunday)
		switch {
		case len(events) > 0 && (!ok || events[0].at <= wake):
			wake = events[0].at
			for ; len(events) > 0 && events[0].at == wake; events = events[1:] {
				events[0].do(w, sunday.Add(wake))
			}
			idle = 0
		case !ok:
			return w.log
		case w.now < wake:
			idle = 0
		}
		w.now = max(w.now, wake)
		if w.now > until {
			return w.log
		}
		w.sync()
	}
	w.t.Fatalf("at %v there is always work:\n%s", w.now, strings.Join(w.log, "\n"))
	return nil
}

// sync is Blocker.sync.
func (w *week) sync() {
	now := sunday.Add(w.now)
	var why []string
	for r := range reasons {
		if w.due(r, now) {
			why = append(why, names[r])
		}
	}
	w.beside(now, w.now < w.another)
	w.change(now, false, w.unknown)
	waiting := len(w.calls)
	did, used, passed := w.workNow(now)
	w.release(now, sunday.Add(w.now), passed)
	if len(w.calls) < waiting {
		did = append(did, "released")
	}
	w.charge(sunday.Add(w.now), used)
	if len(why)+len(did) == 0 {
		return
	}
	w.log = append(w.log, fmt.Sprintf("%v %s: %s", now.Sub(sunday).Round(time.Millisecond), strings.Join(why, "+"), strings.Join(did, ", ")))
}

func (w *week) workNow(now time.Time) (did []string, used time.Duration, passed bool) {
	if w.paused(now) {
		return []string{"pause"}, 0, false
	}
	w.work()
	if n := len(w.takeListings(now)); n > 0 {
		w.longestPause = w.pause
		did, used = append(did, fmt.Sprintf("%d listed", n)), w.used["listing"]
	}
	if w.due(passDue, now) || w.due(routineDue, now) {
		var err error
		if w.now < w.refused {
			err = errors.New("not permitted")
			w.lose(2)
		}
		did, used = append(did, map[bool]string{true: "pass", false: "failed pass"}[err == nil]), used+w.used["pass"]
		w.passed(now, w.used["pass"], err)
		passed = err == nil
	}
	w.now += used
	return did, used, passed
}

var anEnd = openedBy(netip.MustParseAddr("10.0.0.1"))

// The events of these weeks are in all orders, and so are those of one time.
func TestSchedule(t *testing.T) {
	const ms = time.Millisecond
	changed := func(w *week, now time.Time) { w.change(now, true, w.unknown) }
	waiting := func(w *week, _ time.Time) { w.calls = append(w.calls, &waiter{done: make(chan struct{})}) }
	recheck := func(w *week, _ time.Time) { w.lose(1) }
	list := func(in time.Duration) func(*week, time.Time) {
		return func(w *week, now time.Time) { w.list(anEnd, now.Add(in)) }
	}
	urgent := func(w *week, now time.Time) {
		w.listNow([]filter{anEnd}, now)
		w.urgent = true
	}
	crowd := func(w *week, now time.Time) {
		for i := range maxAgain + 1 {
			w.list(openedBy(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})), now.Add(againAfter))
		}
	}
	for _, tt := range []struct {
		name   string
		week   week
		events []event // those of one time in all orders
		until  time.Duration
		want   []string
	}{
		{"nothing", week{}, nil, time.Hour, nil},
		{"a start", week{schedule: newSchedule()}, nil, 16 * time.Second, []string{"0s pass: pass", "5s pass: pass", "15s routine: pass"}},
		{"listings", week{}, []event{{0, list(soonAfter)}, {0, list(againAfter)}, {0, list(0)}}, time.Hour,
			[]string{"0s listing: 1 listed", "50ms listing: 1 listed", "500ms listing: 1 listed"}},
		{"one listing for two reasons", week{}, []event{{0, list(soonAfter)}, {0, list(soonAfter)}}, time.Hour, []string{"50ms listing: 1 listed"}},
		{"too many listings", week{}, []event{{0, crowd}}, 10 * time.Second,
			[]string{"0s pass: pass", fmt.Sprintf("500ms listing: %d listed", maxAgain), "5s pass: pass"}},
		{"a change", week{}, []event{{0, changed}}, time.Hour, []string{"500ms accepted: "}},
		{"a change of unknown classes", week{unknown: true}, []event{{0, changed}}, 10 * time.Second,
			[]string{"0s pass: pass", "500ms accepted: ", "5s pass: pass"}},
		{"two changes of unknown classes", week{unknown: true}, []event{{0, changed}, {time.Second, changed}}, 11 * time.Second,
			[]string{"0s pass: pass", "500ms accepted: ", "1.5s accepted: ", "5s pass: pass", "10s pass: pass"}},
		{"classes that are unknown later", week{}, []event{{0, changed}, {time.Second, func(w *week, _ time.Time) { w.unknown = true }}}, time.Hour,
			[]string{"500ms accepted: "}},
		{"another agent, until it is gone", week{another: 1500 * ms}, []event{{0, changed}}, 6 * time.Second,
			[]string{"500ms accepted: ", "1.5s agents: pass"}},
		{"a recheck beside a change", week{}, []event{{0, recheck}, {0, changed}}, 9 * time.Second, []string{"0s pass: pass", "500ms accepted: "}},
		{"rechecks", week{}, []event{{0, recheck}, {ms, recheck}, {2 * ms, recheck}}, 10 * time.Second,
			[]string{"0s pass: pass", "5s pass: pass"}},
		{"a call of WaitMarked", week{}, []event{{0, waiting}, {30 * ms, changed}}, time.Hour,
			[]string{"0s waiter: ", "50ms waiter: released", "530ms accepted: "}},
		{"one beside a listing", week{}, []event{{0, waiting}, {0, list(soonAfter)}}, time.Hour,
			[]string{"0s waiter: ", "50ms listing+waiter: 1 listed, released"}},
		{"one beside a pass", week{}, []event{{0, recheck}, {ms, recheck}, {ms, waiting}, {time.Second, changed}}, 10 * time.Second,
			[]string{"0s pass: pass", "1.5s accepted: ", "5s pass: pass, released"}},
		{"errors", week{schedule: newSchedule(), refused: 8 * time.Second}, []event{{0, waiting}}, 16 * time.Second,
			[]string{"0s pass: failed pass", "5s pass: failed pass", "10s pass: pass, released", "15s pass: pass"}},
		{"a routine pass fails, beside changes", week{schedule: newSchedule(), refused: time.Hour},
			[]event{{time.Second, func(w *week, now time.Time) { w.passed(now, 0, nil); w.passed(now, 0, nil) }}, {12 * time.Second, changed}, {13 * time.Second, recheck}},
			20 * time.Second, []string{"0s pass: failed pass", "11s routine: failed pass", "12.5s accepted: ", "16s pass+routine: failed pass"}},
		{"long passes", week{schedule: schedule{wanted: 2, missing: 2, budget: budget{used: burst, at: sunday}}, used: map[string]time.Duration{"pass": 30 * time.Second}}, nil, time.Hour / 2,
			[]string{"0s pass: pass", "5m0s pass+routine: pass", "10m0s routine: pass", "15m0s routine: pass", "20m0s routine: pass", "25m0s routine: pass", "30m0s routine: pass"}},
		{"a pause", week{schedule: schedule{budget: budget{used: burst, at: sunday}}, pause: maxPause, used: map[string]time.Duration{"listing": 100 * ms}},
			[]event{{0, list(0)}, {200 * ms, list(0)}, {200 * ms, waiting}, {300 * ms, changed}}, 900 * ms,
			[]string{"0s listing: 1 listed", "200ms : pause", "300ms : pause", "800ms accepted: pause", "850ms listing+waiter: 1 listed, released"}},
		{"a pause that an urgent change ends", week{schedule: schedule{budget: budget{used: burst, at: sunday}}, pause: minPassInterval, used: map[string]time.Duration{"listing": time.Second}},
			[]event{{0, list(0)}, {1200 * ms, list(0)}, {1300 * ms, urgent}}, 3 * time.Second,
			[]string{"0s listing: 1 listed", "1.2s : pause", "1.3s : pause", "2s listing: 1 listed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, events := range orders(tt.events) {
				w := tt.week
				w.t, w.log = t, nil
				w.schedule.calls, w.schedule.listings = nil, nil
				if got := w.run(events, tt.until); !slices.Equal(got, tt.want) {
					t.Errorf("order %d:\n%s\nwant\n%s", i, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
				}
			}
		})
	}
}

// orders returns the orders of events, with those of an earlier time first.
func orders(events []event) (all [][]event) {
	if len(events) < 2 {
		return [][]event{events}
	}
	for i, e := range events {
		if e.at == events[0].at {
			rest := slices.Delete(slices.Clone(events), i, i+1)
			for _, o := range orders(rest) {
				all = append(all, append([]event{e}, o...))
			}
		}
	}
	return all
}
