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
	// settle is how long the directory must be quiet before it is read, so that half-written
	// files are rarely read and a copied folder is read once.
	settle = 100 * time.Millisecond
	// settleMost bounds the wait for quiet while something writes all the time.
	settleMost = time.Second
	// reread is how often the directory is read without a notification, for file systems that
	// send none.
	reread = time.Minute
)

// Run reads the directory, and rereads it after changes, until ctx ends. An error means that
// the system has no notifications at all.
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

// watches keeps notifications for the folders that were read last, and for the parent of the
// directory: if the directory is a link, it may be replaced.
type watches struct {
	dir    string
	notify *fsnotify.Watcher
	seen   map[string]bool
}

// begin is called before each read, add during it, and end after it.
func (w *watches) begin(ctx context.Context) {
	w.seen = map[string]bool{}
	if err := w.add(filepath.Dir(w.dir)); err != nil {
		klog.FromContext(ctx).V(2).Info("Parent directory of the manifests is not watched", "err", err)
	}
}

// add is also called for watched folders: a folder that was removed and recreated has the
// same name but needs a new watch.
func (w *watches) add(folder string) error {
	err := w.notify.Add(folder)
	w.seen[folder] = err == nil
	return err
}

// end removes watches of folders that were not read. It reports whether all other folders are
// certainly watched. After a rename they may not be: the kernel's watch belongs to the folder
// under its old name, which is removed here.
func (w *watches) end() bool {
	sure := true
	for _, folder := range w.notify.WatchList() {
		if !w.seen[folder] {
			sure = false
			// The only possible error is that the folder is no longer watched.
			_ = w.notify.Remove(folder)
		}
	}
	return sure
}

// wait returns true when the directory must be read again, false when ctx has ended.
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
		case err := <-w.notify.Errors: // usually an overflow
			klog.FromContext(ctx).V(2).Info("Notifications of changed manifests were lost", "err", err)
			changed()
		case <-quiet:
			return true
		case <-latest:
			return true
		}
	}
}

// concerns reports whether a change of name is in the directory, rather than of one of its
// siblings.
func (w *watches) concerns(name string) bool {
	return name == w.dir || filepath.Dir(name) != filepath.Dir(w.dir)
}
