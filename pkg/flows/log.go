package flows

import (
	"context"
	"io"
	"time"

	"k8s.io/klog/v2"
)

// logInterval is how often Log writes.
const logInterval = 10 * time.Second

// Log writes records to w until ctx ends, a line of JSON each: every ten seconds the flows
// that have changed, with their counts until then, and denied packets. An error of w is
// logged, and what was to be written then is lost.
func (r *Recorder) Log(ctx context.Context, w io.Writer) error {
	tick := time.NewTicker(logInterval)
	defer tick.Stop()
	var f Filter
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		records := r.Read(f)
		f.After = records[0].Cursor
		if len(records) == 1 {
			continue // nothing but the one of the agent
		}
		if err := Encode(w, records); err != nil {
			klog.FromContext(ctx).Error(err, "Flows could not be logged")
		}
	}
}
