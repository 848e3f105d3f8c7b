package manifests

import (
	"crypto/sha256"
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
	files  map[string][]byte
	unread map[string]error // files and folders that could not be read; "." is the directory itself
}

// sum distinguishes trees.
func (t tree) sum() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		fmt.Fprintf(h, "%q %d %s", name, len(t.files[name]), t.files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(t.unread)) {
		fmt.Fprintf(h, "%q %q", name, t.unread[name].Error())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// walker reads a tree.
type walker struct {
	tree    tree
	readDir func(folder string) ([]fs.DirEntry, error)
}

// walk reads a directory once.
func walk(dir string, readDir func(folder string) ([]fs.DirEntry, error)) tree {
	w := walker{tree{map[string][]byte{}, map[string]error{}}, readDir}
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
	entries, err := w.readDir(real)
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
