package cniresults

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds on the folder, which other programs write: their mistakes must not exhaust the
// agent's memory. A file has a few kilobytes, and a node a few hundred pods.
const (
	maxFiles = 4096
	maxBytes = 256 << 10
)

// fault is the reason why a file, or all files, are ignored.
type fault struct{ error }

func (f *fault) Unwrap() error { return f.error }

// version identifies a version of a file's content.
type version struct {
	size  int64
	mtime time.Time
}

// file is the result of the last read of a file.
type file struct {
	version
	record record
	err    error // nil, errOther or a *fault
}

// folder is the result of the last read of the cache's folder. It belongs to one goroutine.
type folder struct {
	path  string
	files map[string]file
	full  bool // there are more than maxFiles
}

// read reads the files that have changed, and calls report with each new fault. An error
// means that the folder cannot be read completely. Its files are not used then, because the
// newest file of a pod may be missing.
func (d *folder) read(report func(*fault)) error {
	names, more, err := list(d.path)
	if more {
		many := &fault{fmt.Errorf("%s has more than %d files, none is read", d.path, maxFiles)}
		if !d.full {
			report(many)
		}
		err = many
	}
	d.full = more
	if err != nil {
		d.files = nil
		return err
	}
	files := make(map[string]file, len(names))
	for _, name := range names {
		old, known := d.files[name]
		now := d.readFile(name, old)
		if errors.Is(now.err, fs.ErrNotExist) || isFault(now.err) && d.removed(name) {
			continue // removed meanwhile, perhaps while it was read
		}
		files[name] = now
		var f *fault
		if errors.As(now.err, &f) && !(known && old.version == now.version && old.err != nil) {
			report(f)
		}
	}
	d.files = files
	return nil
}

func isFault(err error) bool {
	var f *fault
	return errors.As(err, &f)
}

// removed reports whether a file is gone.
func (d *folder) removed(name string) bool {
	_, err := os.Lstat(filepath.Join(d.path, name))
	return errors.Is(err, fs.ErrNotExist)
}

// list returns up to maxFiles names of a folder.
func list(path string) (names []string, more bool, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	names, err = dir.Readdirnames(maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	return names[:min(len(names), maxFiles)], len(names) > maxFiles, nil
}

// readFile returns the file of this name, or old if it has not changed. A file that could not
// be parsed is read again each time, because it may have been half written.
func (d *folder) readFile(name string, old file) file {
	path := filepath.Join(d.path, name)
	broken := func(v version, err error) file {
		return file{version: v, err: &fault{fmt.Errorf("%q: %w", name, err)}}
	}
	// O_NONBLOCK: opening a FIFO would wait for its writer. O_NOFOLLOW: links are refused.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return broken(version{}, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return broken(version{}, err)
	}
	v := version{info.Size(), info.ModTime()}
	switch {
	case old.version == v && !isFault(old.err):
		return old
	case !info.Mode().IsRegular(), info.Size() == 0: // created, and not written yet
		return file{version: v, err: errOther}
	case info.Size() > maxBytes:
		return broken(v, fmt.Errorf("%d bytes, more than %d", info.Size(), maxBytes))
	}
	content, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return broken(v, err)
	}
	r, err := parse(content)
	if err != nil && !errors.Is(err, errOther) {
		return broken(v, err)
	}
	return file{version: v, record: r, err: err}
}

// sandboxes returns the sandboxes in the files, the most recently written first.
func (d *folder) sandboxes() []Sandbox {
	names := slices.SortedFunc(maps.Keys(d.files), func(a, b string) int {
		return cmp.Or(d.files[b].mtime.Compare(d.files[a].mtime), cmp.Compare(a, b))
	})
	at := map[string]int{} // by container
	sandboxes := []Sandbox{}
	for _, name := range names {
		r := d.files[name].record
		if d.files[name].err != nil {
			continue
		}
		i, known := at[r.container]
		if !known {
			i = len(sandboxes)
			at[r.container] = i
			sandboxes = append(sandboxes, Sandbox{Namespace: r.namespace, Name: r.name, UID: r.uid, Container: r.container, Written: d.files[name].mtime})
		}
		// If a plugin calls other plugins (Multus), a sandbox has a file for each network,
		// usually with the same address.
		if s := &sandboxes[i]; s.UID == r.uid && s.Namespace == r.namespace && s.Name == r.name {
			s.Addrs, s.Links = append(s.Addrs, r.addrs...), append(s.Links, r.links...)
		}
	}
	for i := range sandboxes {
		slices.SortFunc(sandboxes[i].Addrs, netip.Addr.Compare)
		sandboxes[i].Addrs = slices.Compact(sandboxes[i].Addrs)
		slices.Sort(sandboxes[i].Links)
		sandboxes[i].Links = slices.Compact(sandboxes[i].Links)
	}
	return sandboxes
}
