package clusterfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// file is a file to read.
type file struct {
	name  string
	data  []byte
	named bool // by the user, not found in a directory
	built bool // data is one object, made of this file by kustomize
}

// collector finds files, each once.
type collector struct {
	files []file
	seen  map[string]bool
	errs  []error
	// kustomizations are the folders below named directories that have one.
	kustomizations []string
	charts         int // Helm charts below named directories, which are not read
}

// collect finds the files at paths.
func collect(paths []string, stdin io.Reader) *collector {
	c := &collector{seen: map[string]bool{}}
	for _, path := range paths {
		c.add(path, stdin)
	}
	for _, folder := range roots(c.kustomizations) {
		c.build(folder)
	}
	return c
}

func (c *collector) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

func (c *collector) add(path string, stdin io.Reader) {
	if path == Stdin {
		data, err := io.ReadAll(stdin)
		if err != nil {
			c.fail("read standard input: %w", err)
			return
		}
		c.keep(file{name: path, data: data, named: true})
		return
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		c.errs = append(c.errs, err)
	case info.IsDir() && has(path, isKustomization):
		c.build(path)
	case isKustomization(filepath.Base(path)):
		c.build(filepath.Dir(path))
	case info.IsDir() && has(path, isChart):
		c.fail("%s: a Helm chart, of which only the rendered manifests can be read: helm template %s | kubectl netpol ... -f -", path, path)
	case info.IsDir():
		c.folder(path, nil)
	default:
		c.read(path, true)
	}
}

func isChart(name string) bool { return name == "Chart.yaml" }

// has reports whether a folder has a file with such a name. What cannot be read has none.
func has(folder string, named func(string) bool) bool {
	entries, _ := os.ReadDir(folder)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return named(e.Name()) })
}

// build takes over the objects of a kustomization.
func (c *collector) build(folder string) {
	if c.seen[filepath.Clean(folder)] {
		return
	}
	c.seen[filepath.Clean(folder)] = true
	files, err := build(folder)
	if err != nil {
		c.errs = append(c.errs, err)
	}
	c.files = append(c.files, files...)
}

// keep takes over a file, unless another path has led to it.
func (c *collector) keep(f file) {
	if name := filepath.Clean(f.name); !c.seen[name] {
		c.seen[name] = true
		c.files = append(c.files, f)
	}
}

func (c *collector) read(path string, named bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	c.keep(file{name: path, data: data, named: named})
}

// folder reads the folder at path and those below it. above are the real paths of the
// folders around it, to which a link must not lead back.
func (c *collector) folder(path string, above []string) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	if slices.Contains(above, real) {
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	above = append(slices.Clone(above), real)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			c.entry(filepath.Join(path, e.Name()), above)
		}
	}
}

// entry reads what is at path in a folder. What is neither a folder nor a manifest by name is
// passed over.
func (c *collector) entry(path string, above []string) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isManifest(path): // a link to nowhere
	case err != nil:
		c.errs = append(c.errs, err)
	case info.IsDir() && has(path, isKustomization):
		c.kustomizations = append(c.kustomizations, path)
	case info.IsDir() && has(path, isChart):
		c.charts++
	case info.IsDir():
		c.folder(path, above)
	case info.Mode().IsRegular() && isManifest(path):
		c.read(path, false)
	}
}

func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
