package runner

import (
	"math"
	"time"
)

// rateOver is the time constant of a Rate: after it an event counts for a third.
const rateOver = time.Second

// Rate measures how often something happens. The zero value means never. It must not be
// used concurrently.
type Rate struct {
	perSecond float64
	at        time.Time
}

// Add counts n events at a time that is not before the last call's, and returns the events
// per second.
func (r *Rate) Add(now time.Time, n int) (perSecond float64) {
	r.perSecond *= math.Exp(-float64(now.Sub(r.at)) / float64(rateOver))
	r.perSecond += float64(n) / rateOver.Seconds()
	r.at = now
	return r.perSecond
}
