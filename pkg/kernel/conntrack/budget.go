package conntrack

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time that the calling thread has used, in the kernel, too. How long a
// check takes would say something else on a busy machine: there it mostly waits for a CPU, and a pause
// for that would let denied connections go on.
func threadTime() time.Duration {
	var used unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used) // cannot fail
	return time.Duration(used.Nano())
}

// budget is the CPU time that checks may use. The zero value is full.
type budget struct {
	used time.Duration // when at was set
	at   time.Time
}

// has reports whether any of burst is left.
func (b *budget) has(now time.Time) bool { return b.spent(now) < burst }

// spent returns what is used up at now, which is not before the last call of spend.
func (b *budget) spent(now time.Time) time.Duration {
	return max(0, b.used-now.Sub(b.at)/(1+pauseFactor))
}

// spend charges a check that ends now to the budget, and returns how long the next check has to
// wait: not at all until burst is used up, and never longer than atMost.
func (b *budget) spend(now time.Time, took, atMost time.Duration) (pause time.Duration) {
	b.used = b.spent(now) + took
	b.at = now
	over := min(b.used-burst, atMost/pauseFactor)
	if over <= 0 {
		return 0
	}
	b.used = burst + over // later checks do not make up for the limit atMost
	return pauseFactor * over
}
