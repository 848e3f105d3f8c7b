package clusterwatch

import (
	"errors"
	"fmt"
	"iter"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Contents is what a snapshot contains.
type Contents struct {
	// Versions are the resource versions up to which the snapshot contains all changes, by kind.
	// A kind without objects on the server, because it is not served, has none.
	Versions map[string]string
	// Unlisted are the needed pods that it lacks. Packets that depend on them wait.
	Unlisted []PodQuery
	// Restores is the number of times that versions have gone back, because the server's data was
	// restored from a backup. Versions of different numbers cannot be compared.
	Restores int
}

// Following is how the objects of a kind are followed.
type Following struct {
	Kind string
	// Seen is the newest resource version that was received.
	Seen string
	// Err says why newer objects may be missing, nil while the kind is watched.
	Err error
}

// Following returns how each kind is followed, and the present value of Contents.Restores.
func (c *Cache) Following() (all []Following, restores int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = make([]Following, len(c.mirrors))
	for i, m := range c.mirrors {
		all[i] = Following{Kind: m.kind.Name, Seen: c.lowest(m)}
		for w := range c.watchesOf(m) {
			if !c.currency.watched(w) {
				all[i].Err = errors.Join(all[i].Err, w.failures.notWatched())
			}
		}
	}
	return all, c.restores
}

// contents is called with the mutex held, when a snapshot is compiled, or when nothing has changed
// since.
func (c *Cache) contents() Contents {
	contents := Contents{Versions: map[string]string{}, Restores: c.restores}
	for _, m := range c.mirrors {
		if version := c.lowest(m); version != "" {
			contents.Versions[m.kind.Name] = version
		}
		for w := range c.watchesOf(m) {
			w.reported = w.version
		}
	}
	if c.needed != nil {
		contents.Unlisted, _ = c.needed.unlisted()
	}
	return contents
}

// watchesOf yields the mirrors of the kind of m, which are several for needed pods. It is called
// with the mutex held.
func (c *Cache) watchesOf(m *mirror) iter.Seq[*mirror] {
	return func(yield func(*mirror) bool) {
		if !yield(m) || m.kind != compile.KindPod || c.needed == nil {
			return
		}
		for _, w := range c.needed.watches {
			if !yield(w.mirror) {
				return
			}
		}
	}
}

// lowest returns the version that all mirrors of the kind of m have reached. A watch that is not
// listed yet does not count. It is called with the mutex held.
func (c *Cache) lowest(m *mirror) string {
	lowest := m.version
	for w := range c.watchesOf(m) {
		if order, err := resourceversion.CompareResourceVersion(w.version, lowest); err == nil && order < 0 {
			lowest = w.version
		}
	}
	return lowest
}

// notWatched returns an error that the objects are not watched, with the reason if it is known.
func (f *failures) notWatched() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return fmt.Errorf("not watched: %s", f.kind)
	}
	return fmt.Errorf("not watched: %s: %w", f.kind, f.last)
}
