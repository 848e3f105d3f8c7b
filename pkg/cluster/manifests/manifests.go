// Package manifests serves a directory of Kubernetes manifests the way an API server serves a
// cluster: with lists and watches. It finds the files, rereads them when they change, and
// reports errors with line numbers. It does not know what the objects mean.
//
// The rules:
//
//   - Files named *.yaml, *.yml and *.json count, in nested folders too.
//     Hidden files and folders, and any other name, are ignored. Links are
//     followed.
//   - Pods, Namespaces, Nodes, CIDRGroups and all kinds of policy are read,
//     strictly: an unknown field is an error. A List is read as its items. Other kinds are
//     ignored.
//   - In brackets and braces, an address that ends in a colon needs quotes, as
//     YAML 1.2 has it: ["fd00::"].
//   - A file counts as a whole. While anything in it is wrong, or it is empty
//     or unreadable, its last valid content stays in force.
//   - A file that is gone takes its objects with it. A folder that cannot be
//     read keeps the last valid content of its files.
//   - An object in two files is that of the first path in byte order; the
//     second file is reported.
//   - A Pod or NetworkPolicy without a namespace is in "default". An object
//     without a uid gets one made of its kind, namespace and name.
//
// A file is best replaced by renaming another over it. One that is written in
// place is read after a moment of quiet, which may still be too early.
package manifests

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Source is a directory of manifests. Its ListerWatchers may be used from any
// goroutine and wait until Run has read the directory once.
type Source struct {
	dir     string // absolute, with links unresolved
	metrics *metrics

	tables map[*compile.Kind]*table
	ready  chan struct{} // closed when the directory has been read once

	// The following fields belong to the goroutine of Run.
	files  map[string]*file
	faults map[string]fault
}

// New returns the Source of the manifests below dir and registers its metrics.
// An error means that dir cannot be read as a directory.
func New(dir string, reg prometheus.Registerer) (*Source, error) {
	if _, err := os.ReadDir(dir); err != nil {
		return nil, fmt.Errorf("read manifest directory %q: %w", dir, err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolve manifest directory %q: %w", dir, err)
	}
	s := &Source{
		dir:     abs,
		metrics: newMetrics(reg),
		tables:  map[*compile.Kind]*table{},
		ready:   make(chan struct{}),
		files:   map[string]*file{},
		faults:  map[string]fault{},
	}
	for _, k := range kinds {
		s.tables[k] = newTable(k.New(), s.ready)
	}
	return s, nil
}

// Objects lists and watches all objects of a kind.
func (s *Source) Objects(kind *compile.Kind) cache.ListerWatcher {
	return s.tables[kind].listerWatcher("")
}

// Node lists and watches the Node of this name.
func (s *Source) Node(name string) cache.ListerWatcher {
	return s.tables[compile.KindNode].listerWatcher(name)
}
