package manifests

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// settle is how long the directory must be quiet before it is read, so that
	// files are seldom met half written and a copied folder is read once.
	settle = 100 * time.Millisecond
	// settleMost bounds the wait for quiet where something writes all the time.
	settleMost = time.Second
	// reread is how often the directory is read without a notification, for
	// file systems that give none.
	reread = time.Minute
)

// Run reads the directory, and reads it again as it changes, until ctx ends. An
// error means that the system gives no notifications at all.
func (s *Source) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "manifests"))
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch manifest directory %q: %w", s.dir, err)
	}
	defer notify.Close()
	w := &watches{dir: s.dir, notify: notify}
	for {
		w.begin(ctx)
		s.read(ctx, w.add)
		if !w.end() {
			w.begin(ctx)
			s.read(ctx, w.add)
		}
		if !w.wait(ctx) {
			return nil
		}
	}
}

// watches keeps notifications for the folders that were read last, and for the
// one around the directory: a link in its place may come to lead elsewhere.
type watches struct {
	dir    string
	notify *fsnotify.Watcher
	seen   map[string]bool
}

// begin is called before, add in, and end after each reading.
func (w *watches) begin(ctx context.Context) {
	w.seen = map[string]bool{}
	if err := w.add(filepath.Dir(w.dir)); err != nil {
		klog.FromContext(ctx).V(2).Info("Parent directory of the manifests is not watched", "err", err)
	}
}

// add is called again for folders watched already: one that was removed and
// created again has the same name and needs a new watch.
func (w *watches) add(folder string) error {
	err := w.notify.Add(folder)
	w.seen[folder] = err == nil
	return err
}

// end gives up what is watched and was not read. It reports whether the others
// are surely watched. They may not be after a folder was renamed: to the kernel
// it is the one that was watched under its old name, which is given up here.
func (w *watches) end() bool {
	sure := true
	for _, folder := range w.notify.WatchList() {
		if !w.seen[folder] {
			sure = false
			// The one error possible is that it is not watched any more.
			_ = w.notify.Remove(folder)
		}
	}
	return sure
}

// wait returns when the directory is to be read again, or with false when ctx
// has ended.
func (w *watches) wait(ctx context.Context) bool {
	var quiet <-chan time.Time
	latest := time.After(reread)
	changed := func() {
		if quiet == nil {
			latest = time.After(settleMost)
		}
		quiet = time.After(settle)
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-w.notify.Events:
			if w.concerns(event.Name) {
				changed()
			}
		case err := <-w.notify.Errors: // as a rule that there were too many at once
			klog.FromContext(ctx).V(2).Info("Notifications of changed manifests were lost", "err", err)
			changed()
		case <-quiet:
			return true
		case <-latest:
			return true
		}
	}
}

// concerns reports whether a change of name is one of the directory, rather
// than of something beside it.
func (w *watches) concerns(name string) bool {
	return name == w.dir || filepath.Dir(name) != filepath.Dir(w.dir)
}
