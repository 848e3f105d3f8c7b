package steer

import (
	"math"
	"testing"
)

// event is one step in a sequence of commits.
type event func(*commits)

func begins(generation uint32) event { return func(c *commits) { c.begin(generation) } }
func ends(generation uint32) event   { return func(c *commits) { c.end(generation, false) } }
func fails(generation uint32) event  { return func(c *commits) { c.end(generation, true) } }
func lost(c *commits)                { c.notified(commit{lost: true}) }
func breaks(c *commits)              { c.stopped() }
func resumes(c *commits)             { c.started() }

// touches is a commit to our table, unrelated a commit to other tables only.
func touches(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation, touched: true}) }
}

// verdicts is a commit of ours that changes remembered verdicts.
func verdicts(generation uint32) event {
	return func(c *commits) { c.notified(commit{generation: generation, touched: true, verdicts: true}) }
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
		{"ours, notified while we write", []event{begins(4), touches(5), ends(5)}, 0, 0},
		{"ours, notified later", []event{begins(4), ends(5), begins(5), ends(6), touches(5), touches(6)}, 0, 0},
		{"another table", []event{unrelated(5), unrelated(6)}, 0, 0},
		{"another table while we write", []event{begins(4), unrelated(5), touches(6), ends(6)}, 0, 0},
		{"another table while we write, later", []event{begins(4), ends(6), touches(5), unrelated(6)}, 0, 0},
		{"another process", []event{touches(5)}, 1, 0},
		{"another process just before our write", []event{begins(5), touches(5), touches(6), ends(6)}, 1, 0},
		{"another process just after our write", []event{begins(4), ends(5), touches(5), touches(6)}, 1, 0},
		{"another process while we write", []event{begins(4), touches(5), touches(6), ends(6)}, 2, 0},
		{"another process while we write, later", []event{begins(4), ends(6), touches(5), touches(6)}, 2, 0},
		{"our write fails", []event{begins(4), fails(4)}, 0, 0},
		{"our write fails and another process commits", []event{begins(4), touches(5), fails(5)}, 1, 0},
		{"our write fails and a commit by another process is notified later", []event{begins(4), fails(5), touches(5)}, 1, 0},
		{"our write commits nothing", []event{begins(4), ends(4), touches(5)}, 1, 0},
		{"verdicts", []event{verdicts(5), verdicts(6)}, 0, 0},
		{"verdicts while we write", []event{begins(4), verdicts(5), touches(6), verdicts(7), ends(7)}, 0, 0},
		{"verdicts while we write, later", []event{begins(4), ends(7), verdicts(5), touches(6), verdicts(7)}, 0, 0},
		{"verdicts while our write fails", []event{begins(4), verdicts(5), fails(5)}, 0, 0},
		{"verdicts and another process while we write", []event{begins(4), verdicts(5), touches(6), touches(7), ends(7)}, 2, 0},
		{"verdicts between those of another process", []event{touches(5), verdicts(6), touches(7)}, 2, 0},
		{"generations wrap", []event{begins(math.MaxUint32), touches(1), ends(1), touches(2)}, 1, 0},
		{"notifications are lost", []event{lost, lost}, 0, 2},
		{"our write while nothing is notified", []event{breaks, begins(4), ends(5)}, 0, 0},
		{"our write while notifications begin", []event{breaks, begins(4), resumes, ends(5), touches(5)}, 1, 1},
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

// The table need not be read again after commits that were all our own.
func TestCommitsThatAreAllOurOwn(t *testing.T) {
	for _, tt := range []struct {
		name        string
		events      []event
		after, upTo uint32
		want        bool
	}{
		{"verdicts", []event{unrelated(4), verdicts(5), verdicts(6)}, 4, 6, true},
		{"some of them", []event{unrelated(4), verdicts(5), verdicts(6)}, 5, 6, true},
		{"verdicts and addresses", []event{unrelated(4), begins(4), verdicts(5), touches(6), ends(6), verdicts(7)}, 4, 7, true},
		{"the first notification", []event{verdicts(5)}, 4, 5, true},
		{"not all are notified yet", []event{unrelated(4), verdicts(5)}, 4, 6, false},
		{"one was not notified", []event{unrelated(4), verdicts(6)}, 4, 6, false},
		{"one before was not notified", []event{unrelated(4), verdicts(6), verdicts(7)}, 6, 7, true},
		{"another table", []event{unrelated(4), verdicts(5), unrelated(6), verdicts(7)}, 4, 7, false},
		{"another table before", []event{unrelated(4), verdicts(5), unrelated(6), verdicts(7)}, 6, 7, true},
		{"another process", []event{unrelated(4), touches(5), verdicts(6)}, 4, 6, false},
		{"another process at the end", []event{unrelated(4), verdicts(5), touches(6)}, 4, 6, false},
		{"notifications ended", []event{unrelated(4), verdicts(5), breaks}, 4, 5, false},
		{"notifications began again", []event{unrelated(4), verdicts(5), breaks, resumes, verdicts(7)}, 4, 7, false},
		{"generations wrap", []event{unrelated(math.MaxUint32 - 1), verdicts(math.MaxUint32), verdicts(1)}, math.MaxUint32 - 1, 1, true},
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
