package steer

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// event is one step in a sequence of commits.
type event func(*commits)

func lost(c *commits)    { c.notified(commit{lost: true}) }
func breaks(c *commits)  { c.stopped() }
func resumes(c *commits) { c.started() }

// touches is a commit of another process to our table, and unrelated one to other tables only.
func touches(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation, touched: true}) }
}

// own is our own commit.
func own(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation, touched: true, own: true}) }
}

func unrelated(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation}) }
}

func TestCommitsDistinguishOwnAndExternal(t *testing.T) {
	for _, tt := range []struct {
		name     string
		events   []event
		external int
		lost     int
	}{
		{"ours", []event{own(5), own(6)}, 0, 0},
		{"another table", []event{unrelated(5), unrelated(6)}, 0, 0},
		{"another table between ours", []event{own(5), unrelated(6), own(7)}, 0, 0},
		{"another process", []event{touches(5)}, 1, 0},
		{"another process between ours", []event{own(5), touches(6), own(7)}, 1, 0},
		{"ours between those of another process", []event{touches(5), own(6), touches(7)}, 2, 0},
		{"generations wrap", []event{own(math.MaxUint32), touches(1), own(2)}, 1, 0},
		{"notifications are lost", []event{lost, lost}, 0, 2},
		{"notifications begin again", []event{breaks, resumes, own(5)}, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c commits
			c.started()
			c.verified(c.unverified())
			for _, e := range tt.events {
				e(&c)
			}
			got := c.unverified()
			if got.external != tt.external || got.lost != tt.lost {
				t.Errorf("%d external and %d lost, want %d and %d", got.external, got.lost, tt.external, tt.lost)
			}
			if (got.error() != nil) != (tt.external+tt.lost > 0) {
				t.Errorf("the error is %v", got.error())
			}
			c.verified(got)
			if d := c.unverified(); d.any() {
				t.Errorf("after the verification %+v", d)
			}
		})
	}
}

// The table need not be read again if all commits were our own.
func TestCommitsThatAreAllOurOwn(t *testing.T) {
	for _, tt := range []struct {
		name        string
		events      []event
		after, upTo uint32
		want        bool
	}{
		{"ours", []event{unrelated(4), own(5), own(6)}, 4, 6, true},
		{"some of them", []event{unrelated(4), own(5), own(6)}, 5, 6, true},
		{"the first notification", []event{own(5)}, 4, 5, true},
		{"not all are notified yet", []event{unrelated(4), own(5)}, 4, 6, false},
		{"one was not notified", []event{unrelated(4), own(6)}, 4, 6, false},
		{"one before was not notified", []event{unrelated(4), own(6), own(7)}, 6, 7, true},
		{"another table", []event{unrelated(4), own(5), unrelated(6), own(7)}, 4, 7, false},
		{"another table before", []event{unrelated(4), own(5), unrelated(6), own(7)}, 6, 7, true},
		{"another process", []event{unrelated(4), touches(5), own(6)}, 4, 6, false},
		{"another process at the end", []event{unrelated(4), own(5), touches(6)}, 4, 6, false},
		{"notifications ended", []event{unrelated(4), own(5), breaks}, 4, 5, false},
		{"notifications began again", []event{unrelated(4), own(5), breaks, resumes, own(7)}, 4, 7, false},
		{"generations wrap", []event{unrelated(math.MaxUint32 - 1), own(math.MaxUint32), own(1)}, math.MaxUint32 - 1, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c commits
			c.started()
			for _, e := range tt.events {
				e(&c)
			}
			if got := c.own(tt.after, tt.upTo); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// A write is planned for the latest generation at which the table is known to be as observed.
func TestUnchangedSinceAGeneration(t *testing.T) {
	for _, tt := range []struct {
		name        string
		events      []event
		since, want uint32
	}{
		{"nothing is notified", nil, 4, 4},
		{"ours", []event{own(5), own(6)}, 4, 6},
		{"another table", []event{own(5), unrelated(6), unrelated(7)}, 4, 7},
		{"the first notification may be late", []event{unrelated(7)}, 4, 4},
		{"another process", []event{own(5), touches(6), own(7)}, 4, 4},
		{"another process before", []event{touches(6), own(7)}, 6, 7},
		{"one was not notified", []event{own(5), own(7)}, 4, 4},
		{"one before was not notified", []event{own(5), own(7), own(8)}, 7, 8},
		{"some were lost", []event{own(5), lost}, 4, 4},
		{"some were lost, with what the next one was about", []event{own(5), lost, unrelated(6), own(7)}, 5, 5},
		{"some were lost before", []event{own(5), lost, unrelated(6), own(7)}, 6, 7},
		{"notifications ended", []event{own(5), breaks}, 4, 4},
		{"generations wrap", []event{own(math.MaxUint32), unrelated(1)}, math.MaxUint32 - 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c commits
			c.started()
			for _, e := range tt.events {
				e(&c)
			}
			if got := c.unchanged(tt.since); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

// After a refused write, wait waits for the notification of the commit that caused it.
func TestWaitForNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		c.started()
		own(5)(&c)
		go unrelated(6)(&c)
		c.wait(t.Context(), 6)
		if got := c.unchanged(5); got != 6 {
			t.Errorf("waited until %d", got)
		}
		began := time.Now()
		c.wait(t.Context(), 7)
		if took := time.Since(began); took != notificationWait {
			t.Errorf("waited %v for a notification that does not come", took)
		}
		go c.stopped()
		c.wait(t.Context(), 7)
		if took := time.Since(began); took != notificationWait {
			t.Errorf("waited %v after notifications had ended", took)
		}
	})
}

func TestCommitDuringVerificationIsVerifiedAgain(t *testing.T) {
	var c commits
	c.started()
	touches(5)(&c)
	d := c.unverified()
	touches(6)(&c)
	c.verified(d)
	if got := c.unverified(); got.external != 1 || got.lost != 0 {
		t.Errorf("got %+v, want one external commit", got)
	}
}
