package conntrack

import "time"

// budget is the CPU time that checks may use. The zero value is full.
type budget struct {
	used time.Duration // at the time at
	at   time.Time
}

// has reports whether any of burst is left.
func (b *budget) has(now time.Time) bool { return b.spent(now) < burst }

// spent returns what is used up at a time that is not before the last call of spend.
func (b *budget) spent(now time.Time) time.Duration {
	return max(0, b.used-now.Sub(b.at)/(1+restShare))
}

// spend takes the time of a check that ends now from the budget, and returns how long the next
// one has to wait: at most atMost, and not at all unless burst is used up.
func (b *budget) spend(now time.Time, took, atMost time.Duration) (rest time.Duration) {
	b.used = b.spent(now) + took
	b.at = now
	over := min(b.used-burst, atMost/restShare)
	if over <= 0 {
		return 0
	}
	b.used = burst + over // later checks do not wait for what atMost cuts off
	return restShare * over
}
