package links

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/ktesting"
)

// fake is a kernel whose links a test sets, and which fails while err is set.
type fake struct {
	links   Links
	err     error
	changed func()
}

func (f *fake) read() (Links, error) { return f.links, f.err }

func (f *fake) watch(ctx context.Context, changed func()) error {
	f.changed = changed
	changed()
	<-ctx.Done()
	return ctx.Err()
}

func TestWatcherTracksLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		k := &fake{err: errors.New("boom")}
		changes := 0
		w := newWatcher(Config{Changed: func() { changes++ }}, k)
		if _, _, known := w.Names(nil); known || !errors.Is(w.Healthy(), errNotRead) {
			t.Errorf("before the first read: known %v, %v", known, w.Healthy())
		}
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()
		if _, _, known := w.Names(nil); known || w.Healthy() == nil || changes != 0 {
			t.Errorf("read fails: known %v, %v, %d changes", known, w.Healthy(), changes)
		}
		k.err, k.links = nil, Links{1: {Index: 1, Name: "eth0"}}
		time.Sleep(retryInterval)
		synctest.Wait()
		if got, _, known := w.Names(nil); !known || !slices.Equal(got, []string{"eth0"}) || w.Healthy() != nil || changes != 1 {
			t.Errorf("after the first read: %v, %v, %v, %d changes", got, known, w.Healthy(), changes)
		}
		k.links = Links{1: {Index: 1, Name: "eth1"}}
		k.changed()
		time.Sleep(minInterval)
		synctest.Wait()
		if got, _, _ := w.Names(nil); !slices.Equal(got, []string{"eth1"}) || changes != 2 {
			t.Errorf("after a change: %v, %d changes", got, changes)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
