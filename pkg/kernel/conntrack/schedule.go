package conntrack

import (
	"slices"
	"time"
)

const (
	// In the long run checks use a tenth of a core. After a quiet time they may use burst of
	// CPU time without delay. When it is used up, each check is followed by a pause of up to
	// pauseFactor times its CPU time. The pause is at most maxPause, or minPassInterval where the
	// kernel ignores filters. So that denied connections do not go on for that long, a change
	// waits for no more than maxPause, or the CPU time of the check before: half of a core.
	pauseFactor = 9
	burst       = 2 * time.Second
	maxPause    = 750 * time.Millisecond

	// Blocked connections are listed again after soonAfter and againAfter: a packet may have
	// been accepted just before the check and have created its entry just after it, delayed by
	// a busy CPU, or the connection may have been offloaded meanwhile. The connections of newly
	// selected addresses are listed once more after lateAfter: by then the nftables table
	// queues the packets of new ones.
	soonAfter  = 50 * time.Millisecond
	againAfter = 500 * time.Millisecond
	lateAfter  = 5 * time.Second

	// minPassInterval is the least time between the starts of two passes. Because a pass
	// lists the whole table, the pause after it is also at least pauseFactor times its CPU time.
	minPassInterval = 5 * time.Second
	// minDrift bounds how long a missed connection keeps a wrong mark: another program may add
	// answered entries or clear marks, the kernel may move entries while it lists them, and when
	// two processes write a mark at the same time, one of the writes is lost. The kernel's events
	// would name such writes at once, but cost every connection of the node a fifth of its setup.
	// Large tables are listed less often: every driftFactor times the CPU time of a pass, up to
	// maxDrift.
	minDrift    = 10 * time.Second
	maxDrift    = 4 * time.Minute
	driftFactor = 100

	// agentsInterval is how often the Blocker checks whether another agent still accepts
	// packets, once there was one.
	agentsInterval = time.Second

	// maxAgain bounds the filters that wait to be listed again.
	maxAgain = 4 * maxFiltered
)

// reason is why a Blocker works although nothing has changed.
type reason uint8

const (
	listingDue  reason = iota // of connections that filters select
	waitersDue                // a call of WaitMarked may return
	acceptedDue               // what the Evaluator before the last change has accepted is to be read
	agentsDue                 // is another agent still there?
	passDue                   // marks may be wrong
	routineDue                // a pass finds what was missed
	reasons                   // the number of reasons
)

// schedule says when a Blocker has to work, and why. It reads no clock.
type schedule struct {
	wanted   int       // passes that are needed, one after the other
	missing  int       // those of them without which marks may be wrong although nothing has changed
	earliest time.Time // when the next pass may begin
	routine  time.Time // when one is made even if none is needed, zero before the first one
	listings []listing
	urgent   bool // the kernel does not override all wrong marks that the listings correct
	calls    []*waiter
	accepted time.Time // when to read what the Evaluator before has accepted, zero once it was read
	covered  bool      // passes for the last change are wanted
	agents   time.Time // when to ask for the other agent, zero without one

	budget       budget
	pause        time.Time // until then changes are noticed, and no marks follow; zero without a pause
	urgentPause  time.Time // the same while marks are urgent
	longestPause time.Duration
}

// listing is a filter whose connections will be listed.
type listing struct {
	filter
	at time.Time
}

func (l listing) due() time.Time { return l.at }

// waiter is a call of WaitMarked.
type waiter struct {
	since Change
	at    time.Time // when what was accepted before the call has made its entry, zero until a sync has begun
	done  chan struct{}
}

// newSchedule wants two passes: an earlier agent may accept packets during the first one.
func newSchedule() schedule { return schedule{wanted: 2, missing: 2, longestPause: maxPause} }

// at returns when there is work for a reason.
func (s *schedule) at(r reason) (at time.Time, ok bool) {
	switch r {
	case listingDue:
		at, ok = first(s.listings, listing.due)
	case waitersDue:
		at, ok = first(s.calls, func(c *waiter) time.Time { return c.at })
		ok = ok && s.wanted == 0 // otherwise it takes a pass
	case acceptedDue:
		return s.accepted, !s.accepted.IsZero()
	case agentsDue:
		return s.agents, !s.agents.IsZero()
	case passDue:
		at, ok = s.earliest, s.wanted > 0
	case routineDue:
		at, ok = later(s.routine, s.earliest), !s.routine.IsZero()
	}
	return later(at, s.pauseEnd()), ok
}

// due reports whether there is work for a reason.
func (s *schedule) due(r reason, now time.Time) bool {
	at, ok := s.at(r)
	return ok && !now.Before(at)
}

// next returns when there is work next, and the reason. It reports false if only a change makes work.
func (s *schedule) next() (next time.Time, why reason, ok bool) {
	for r := range reasons {
		if at, found := s.at(r); found && (!ok || at.Before(next)) {
			next, why, ok = at, r, true
		}
	}
	return next, why, ok
}

// first returns the earliest time of the items.
func first[T any](items []T, at func(T) time.Time) (earliest time.Time, ok bool) {
	for i, item := range items {
		if t := at(item); i == 0 || t.Before(earliest) {
			earliest = t
		}
	}
	return earliest, len(items) > 0
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// want asks for n passes.
func (s *schedule) want(n int) { s.wanted = max(s.wanted, n) }

// lose records that marks may be wrong until n passes are made.
func (s *schedule) lose(n int) {
	s.want(n)
	s.missing = max(s.missing, n)
}

// hasten wants two passes, the first one now if the budget has any CPU time left.
func (s *schedule) hasten(now time.Time) {
	s.want(2)
	if s.budget.has(now) {
		s.earliest = now
	}
}

// passed records a pass that began at start, and how much CPU time it took.
func (s *schedule) passed(start time.Time, used time.Duration, err error) {
	s.earliest = start.Add(max(minPassInterval, (1+pauseFactor)*used))
	if err != nil {
		return
	}
	s.wanted, s.missing = max(s.wanted-1, 0), max(s.missing-1, 0)
	s.routine = start.Add(min(max(minDrift, driftFactor*used), maxDrift))
}

// list plans a listing of f, or a pass if too many are planned.
func (s *schedule) list(f filter, at time.Time) {
	if len(s.listings) >= maxAgain {
		s.want(2)
		return
	}
	s.listings = append(s.listings, listing{f, at})
}

// listNow plans listings that are due.
func (s *schedule) listNow(filters []filter, now time.Time) {
	for _, f := range filters {
		s.listings = append(s.listings, listing{f, now})
	}
}

// takeListings removes and returns the filters whose listing is due.
func (s *schedule) takeListings(now time.Time) (due []filter) {
	s.listings = slices.DeleteFunc(s.listings, func(l listing) bool {
		if now.Before(l.at) {
			return false
		}
		due = append(due, l.filter)
		return true
	})
	s.urgent = false
	return withoutDuplicates(due)
}

// change records whether something has changed, and whether classes are unknown. The Evaluator before
// may accept packets for a while, and their classes may get lost, too.
func (s *schedule) change(now time.Time, changed, unknown bool) {
	if changed {
		s.accepted, s.covered = now.Add(againAfter), false
	}
	if unknown && !s.covered && !s.accepted.IsZero() {
		s.want(2)
		s.covered = true
	}
	if !now.Before(s.accepted) {
		s.accepted = time.Time{}
	}
}

// beside records whether another agent accepts packets. When it has stopped, a pass is needed.
func (s *schedule) beside(now time.Time, another bool) {
	switch {
	case another:
		s.agents = now.Add(agentsInterval)
	case !s.agents.IsZero():
		s.agents = time.Time{}
		s.want(1)
	}
}

// release ends calls of WaitMarked after a sync that began at start. passed is set if it made a pass and had no
// error; after an error, passes are wanted.
//
// A packet that was accepted just before a check may have made its entry just after it. So the first
// sync after a call plans another listing of what may have been accepted without an evaluation,
// soonAfter later, as a check does of what it has blocked, and the sync that makes these listings ends
// the call. If classes are missing, it has to make a pass.
func (s *schedule) release(start, now time.Time, passed bool) {
	pending, any := first(s.listings, listing.due)
	complete := (passed || s.wanted == 0) && (!any || start.Before(pending))
	s.calls = slices.DeleteFunc(s.calls, func(c *waiter) bool {
		if c.at.IsZero() {
			c.at = now.Add(soonAfter)
			for _, f := range c.since.filters() {
				s.list(f, c.at)
			}
			return false
		}
		ends := complete && !start.Before(c.at)
		if ends {
			close(c.done)
		}
		return ends
	})
}

// paused reports whether marks do not follow yet.
func (s *schedule) paused(now time.Time) bool { return now.Before(s.pauseEnd()) }

func (s *schedule) pauseEnd() time.Time {
	if s.urgent {
		return s.urgentPause
	}
	return s.pause
}

// work ends the pause before work.
func (s *schedule) work() {
	s.pause, s.urgentPause, s.longestPause = time.Time{}, time.Time{}, maxPause
}

// charge charges CPU time to the budget, and begins a pause after work. What is noticed in a pause does not
// extend it.
func (s *schedule) charge(now time.Time, used time.Duration) {
	pause := s.budget.spend(now, used, s.longestPause)
	if s.pause.IsZero() {
		s.pause, s.urgentPause = now.Add(pause), now.Add(min(pause, max(maxPause, used)))
	}
}
