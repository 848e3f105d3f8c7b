package flows

import (
	"context"
	"io"
	"time"

	"k8s.io/klog/v2"
)

// logInterval is how often Log writes.
const logInterval = 10 * time.Second

// Log writes records to w until ctx ends, as lines of JSON: every ten seconds the flows that
// have changed, with their total counts, and denied packets. It logs errors of w; the records
// of a failed write are lost.
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
			continue // only the agent's record
		}
		if err := Encode(w, records); err != nil {
			klog.FromContext(ctx).Error(err, "Flows could not be logged")
		}
	}
}
