package clusterfiles

import (
	"cmp"
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/helmchart"
)

type file struct {
	name  string
	data  []byte
	named bool // given by the user rather than found in a directory
	// built says that kustomize or Helm made data from the file of this name.
	built bool
	order int // index of the path that it was found below
}

// collector finds files and keeps each once.
type collector struct {
	options Options
	files   []file
	seen    map[string]bool
	errs    []error
	// paths are those to search, path is the one that is searched, and order its index.
	paths []string
	path  string
	order int
	// kustomizations are the folders with a kustomization below the given directories, and the
	// index of the directory.
	kustomizations map[string]int
	// built has, of the folders with a kustomization, whether kustomize could build them, and read
	// the real paths of what it read.
	built    map[string]bool
	read     map[string]bool
	charts   int             // Helm charts below the given directories, which are not read
	excludes map[string]bool // patterns that match something
}

func collect(paths []string, stdin io.Reader, options Options) *collector {
	c := &collector{options: options, paths: paths, built: map[string]bool{}, seen: map[string]bool{}, kustomizations: map[string]int{}, read: map[string]bool{}, excludes: map[string]bool{}}
	for _, pattern := range options.Exclude {
		if _, err := path.Match(pattern, ""); err != nil {
			c.fail("pattern %q: %w", pattern, err)
			return c
		}
	}
	for c.order, c.path = range paths {
		c.add(c.path, stdin)
	}
	for _, folder := range roots(slices.Sorted(maps.Keys(c.kustomizations))) {
		c.order = c.kustomizations[folder]
		c.build(folder, true)
	}
	c.unread()
	return c
}

// excluded reports whether a pattern excludes what was found at name.
func (c *collector) excluded(name string) bool {
	below, err := filepath.Rel(c.path, name)
	if err != nil {
		below = name
	}
	below = filepath.ToSlash(below)
	for _, pattern := range c.options.Exclude {
		tried := below
		if !strings.Contains(pattern, "/") {
			tried = path.Base(below)
		}
		if matched, _ := path.Match(strings.TrimSuffix(pattern, "/"), tried); matched { // a bad pattern is an error of collect
			c.excludes[pattern] = true
			return true
		}
	}
	return false
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
		c.build(path, false)
	case isKustomization(filepath.Base(path)):
		c.build(filepath.Dir(path), false)
	case IsChart(path):
		c.chart(path)
	case info.IsDir():
		c.folder(path, nil)
	default:
		c.readFile(path, true)
	}
}

// has reports whether a folder contains a file whose name satisfies the predicate. An
// unreadable folder contains none.
func has(folder string, named func(string) bool) bool {
	entries, _ := os.ReadDir(folder)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return named(e.Name()) })
}

// build adds the objects of a kustomization. If it was found in a directory, the rest of the
// directory is read although it cannot be built.
func (c *collector) build(folder string, found bool) {
	if c.seen[filepath.Clean(folder)] {
		return
	}
	c.seen[filepath.Clean(folder)] = true
	files, left, err := build(folder, c.read)
	c.errs = append(c.errs, left...)
	c.built[folder], c.kustomizations[folder] = err == nil, c.order
	if err != nil && found {
		err = &tolerable{err, "passed over"}
	}
	if err != nil {
		c.errs = append(c.errs, err)
	}
	for _, f := range files {
		f.order = c.order
		c.files = append(c.files, f)
	}
}

// IsChart reports whether a path is that of a Helm chart.
func IsChart(path string) bool { return helmchart.IsArchive(path) || has(path, helmchart.IsFile) }

// chart adds what a chart renders to. Lines of templates are not those of their manifests.
func (c *collector) chart(path string) {
	templates, err := helmchart.Render(path, cmp.Or(c.options.Namespace, metav1.NamespaceDefault), c.options.Values)
	if err != nil {
		c.fail("chart %s: %w", path, err)
	}
	for _, t := range templates {
		c.keep(file{name: filepath.Join(path, t.Name), data: []byte(t.Text), named: true, built: true})
	}
}

// keep adds a file unless it was already found by another path.
func (c *collector) keep(f file) {
	if name := filepath.Clean(f.name); !c.seen[name] {
		c.seen[name] = true
		f.order = c.order
		c.files = append(c.files, f)
	}
}

func (c *collector) readFile(path string, named bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	c.keep(file{name: path, data: data, named: named})
}

// folder reads the folder at path recursively. above are the real paths of its parents: a
// link back to one of them would never end.
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
		name := filepath.Join(path, e.Name())
		if !strings.HasPrefix(e.Name(), ".") && !c.excluded(name) {
			c.entry(name, above)
		}
	}
}

// entry reads a directory entry. It skips what is neither a folder nor named like a
// manifest.
func (c *collector) entry(path string, above []string) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isManifest(path): // a dangling link
	case err != nil:
		c.errs = append(c.errs, err)
	case info.IsDir() && has(path, isKustomization):
		if _, known := c.kustomizations[path]; !known {
			c.kustomizations[path] = c.order
		}
	case info.IsDir() && has(path, helmchart.IsFile):
		c.charts++
	case info.IsDir():
		c.folder(path, above)
	case info.Mode().IsRegular() && isManifest(path):
		c.readFile(path, false)
	}
}

func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
