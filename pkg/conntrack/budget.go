package conntrack

import "time"

// budget is the CPU time that checks may use. The zero value is full.
type budget struct {
	used time.Duration // not given back by time yet
	at   time.Time
}

// spend takes what a check took that ended now, and returns how long the next one has to
// wait: no time unless burst is used up, and at most atMost.
func (b *budget) spend(now time.Time, took, atMost time.Duration) (rest time.Duration) {
	b.used = max(0, b.used-now.Sub(b.at)/(1+restShare)) + took
	b.at = now
	over := min(b.used-burst, atMost/restShare)
	if over <= 0 {
		return 0
	}
	b.used = burst + over // later checks do not wait for what atMost cuts off
	return restShare * over
}
