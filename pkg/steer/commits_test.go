package steer

import (
	"math"
	"testing"
)

// event is one step of a history of commits.
type event func(*commits)

func begins(generation uint32) event { return func(c *commits) { c.begin(generation) } }
func ends(generation uint32) event   { return func(c *commits) { c.end(generation, false) } }
func fails(generation uint32) event  { return func(c *commits) { c.end(generation, true) } }
func lost(c *commits)                { c.notified(commit{lost: true}) }
func breaks(c *commits)              { c.stopped() }
func resumes(c *commits)             { c.started() }

// touches is a commit to our table, others one to other tables only.
func touches(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation, touched: true}) }
}

func others(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation}) }
}

func TestCommitsOfOthersAreToldFromOurs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		history []event
		foreign int
		unknown int
	}{
		{"ours, notified while we write", []event{begins(4), touches(5), ends(5)}, 0, 0},
		{"ours, notified later", []event{begins(4), ends(5), begins(5), ends(6), touches(5), touches(6)}, 0, 0},
		{"another table", []event{others(5), others(6)}, 0, 0},
		{"another table while we write", []event{begins(4), others(5), touches(6), ends(6)}, 0, 0},
		{"another table while we write, later", []event{begins(4), ends(6), touches(5), others(6)}, 0, 0},
		{"somebody else", []event{touches(5)}, 1, 0},
		{"somebody else just ahead of our write", []event{begins(5), touches(5), touches(6), ends(6)}, 1, 0},
		{"somebody else just behind our write", []event{begins(4), ends(5), touches(5), touches(6)}, 1, 0},
		{"somebody else while we write", []event{begins(4), touches(5), touches(6), ends(6)}, 2, 0},
		{"somebody else while we write, later", []event{begins(4), ends(6), touches(5), touches(6)}, 2, 0},
		{"our write fails", []event{begins(4), fails(4)}, 0, 0},
		{"our write fails and somebody else commits", []event{begins(4), touches(5), fails(5)}, 1, 0},
		{"our write fails and somebody else's commit is notified later", []event{begins(4), fails(5), touches(5)}, 1, 0},
		{"our write commits nothing", []event{begins(4), ends(4), touches(5)}, 1, 0},
		{"generations wrap", []event{begins(math.MaxUint32), touches(1), ends(1), touches(2)}, 1, 0},
		{"notifications are lost", []event{lost, lost}, 0, 2},
		{"our write while nothing is notified", []event{breaks, begins(4), ends(5)}, 0, 0},
		{"our write while notifications begin", []event{breaks, begins(4), resumes, ends(5), touches(5)}, 1, 1},
	} {
		var c commits
		c.started()
		c.verified(c.doubts())
		for _, e := range tt.history {
			e(&c)
		}
		got := c.doubts()
		if got.foreign != tt.foreign || got.unknown != tt.unknown {
			t.Errorf("%s: %d of others and %d unknown, want %d and %d", tt.name, got.foreign, got.unknown, tt.foreign, tt.unknown)
		}
		if (got.error() != nil) != (tt.foreign+tt.unknown > 0) {
			t.Errorf("%s: the error is %v", tt.name, got.error())
		}
		c.verified(got)
		if d := c.doubts(); d.any() {
			t.Errorf("%s: after the verification %+v", tt.name, d)
		}
	}
}

func TestWhatIsCommittedDuringAVerificationIsVerifiedAgain(t *testing.T) {
	var c commits
	c.started()
	touches(5)(&c)
	d := c.doubts()
	touches(6)(&c)
	c.verified(d)
	if got := c.doubts(); got.foreign != 1 || got.unknown != 0 {
		t.Errorf("got %+v, want one commit of others", got)
	}
}
