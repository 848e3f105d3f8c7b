package runner

import (
	"math"
	"time"
)

// rateOver is the time over which a Rate is measured: after it an event counts for a third.
const rateOver = time.Second

// Rate is how often something happens. The zero value is that of something that did not
// happen yet. It may be used by one goroutine at a time.
type Rate struct {
	perSecond float64
	at        time.Time
}

// Add counts n events at a time that is not before that of the last call, and returns how
// many there are a second.
func (r *Rate) Add(now time.Time, n int) (perSecond float64) {
	r.perSecond *= math.Exp(-float64(now.Sub(r.at)) / float64(rateOver))
	r.perSecond += float64(n) / rateOver.Seconds()
	r.at = now
	return r.perSecond
}
