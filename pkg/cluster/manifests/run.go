package manifests

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
)

const (
	// pollInterval is the time between two reads of the directory. Notifications would be no
	// earlier, since what they announce may be half written, and some file systems send none.
	pollInterval = 100 * time.Millisecond
	// pollPause is how many times as long as a read took the next one waits.
	pollPause = 20
	// mostChanges is how many reads in a row may differ until that is a fault.
	mostChanges = 10
)

// Run reads the directory again and again until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "manifests"))
	s.look(ctx) // the first of two reads that have to be equal
	for {
		began := time.Now()
		s.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(pollInterval, pollPause*time.Since(began))):
		}
	}
}

// look reads the directory, and uses a change when two reads in a row are equal. While files are
// replaced, or the link that they are behind, one read may have some files of before the change and
// others of after it, and miss an object that moves from one file to another.
func (s *Source) look(ctx context.Context) {
	t := walk(s.dir, s.readDir)
	switch sum := t.sum(); {
	case sum != s.last:
		s.last = sum
		s.changes++
		if s.changes == mostChanges {
			s.use(ctx, tree{unread: map[string]error{".": errors.New("files change while they are read")}})
		}
	case s.changes > 0:
		s.changes = 0
		s.use(ctx, t)
	}
}
