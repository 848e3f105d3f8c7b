package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxFileSize is far above the size of manifests (an API server accepts 1.5 MiB per object).
// It keeps a wrong link from filling the memory.
const maxFileSize = 64 << 20

var errTooLarge = fmt.Errorf("larger than %d bytes", maxFileSize)

// tree holds the files below a directory, by slash path relative to it.
type tree struct {
	files     map[string][]byte
	unread    map[string]error // files and folders that could not be read; "." is the directory itself
	unwatched map[string]error // folders that were read, but whose changes are only seen by reread
}

// walker reads a tree. watch is called with each folder before it is read, so that no later
// change is missed.
type walker struct {
	tree  tree
	watch func(folder string) error
}

// reads is how often a directory is read until two reads in a row are equal.
const reads = 5

// readTree reads a directory until two reads in a row are equal. While files are replaced, or the link
// that they are behind, one read may have some files of before the change and others of after it, and
// miss an object that moves from one file to another.
func readTree(dir string, watch func(folder string) error) tree {
	before := walk(dir, watch)
	for range reads - 1 {
		now := walk(dir, watch)
		if now.equal(before) {
			return now
		}
		before = now
	}
	return tree{unread: map[string]error{".": errors.New("files change while they are read")}, unwatched: before.unwatched}
}

func (t tree) equal(o tree) bool {
	text := func(a, b error) bool { return a.Error() == b.Error() }
	return maps.EqualFunc(t.files, o.files, bytes.Equal) && maps.EqualFunc(t.unread, o.unread, text)
}

// walk reads a directory once.
func walk(dir string, watch func(folder string) error) tree {
	w := walker{
		tree:  tree{map[string][]byte{}, map[string]error{}, map[string]error{}},
		watch: watch,
	}
	w.folder(dir, ".", nil)
	return w.tree
}

// folder reads the folder at dir, a real path or a link, known as rel. above are the real
// paths of its parents; a link must not lead back to one of them.
func (w *walker) folder(dir, rel string, above []string) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		w.tree.unread[rel] = err
		return
	}
	if slices.Contains(above, real) {
		return
	}
	if err := w.watch(real); err != nil {
		w.tree.unwatched[rel] = fmt.Errorf("watch: %w", err)
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		w.tree.unread[rel] = err
		return
	}
	above = append(slices.Clone(above), real)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			w.entry(filepath.Join(real, e.Name()), path.Join(rel, e.Name()), above)
		}
	}
}

// entry reads the file or folder at full, known as rel.
func (w *walker) entry(full, rel string, above []string) {
	info, err := os.Stat(full)
	switch {
	case err != nil:
		if isManifest(rel) || path.Ext(rel) == "" { // which may be a folder
			w.failUnlessGone(full, rel, err)
		}
	case info.IsDir():
		w.folder(full, rel, above)
	case isManifest(rel):
		if data, err := readFile(full, info); err != nil {
			w.failUnlessGone(full, rel, err)
		} else {
			w.tree.files[rel] = data
		}
	}
}

// failUnlessGone records err unless the file was removed since its folder was read.
func (w *walker) failUnlessGone(full, rel string, err error) {
	if _, gone := os.Lstat(full); errors.Is(gone, fs.ErrNotExist) {
		return
	}
	w.tree.unread[rel] = err
}

func isManifest(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func readFile(name string, info fs.FileInfo) ([]byte, error) {
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", info.Mode().Type())
	}
	if info.Size() > maxFileSize {
		return nil, errTooLarge
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(data) > maxFileSize {
		err = errTooLarge
	}
	return data, err
}
