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
//     strictly: an unknown field is an error, and so is a kind that seems to be misspelt. A
//     List is read as its items. Other kinds are ignored.
//   - In brackets and braces, an address that ends in a colon needs quotes, as
//     YAML 1.2 has it: ["fd00::"].
//   - Nothing is served until all files are valid at once, and there is one:
//     without the invalid ones, pods would be open that they isolate.
//   - A file counts as a whole. If anything in it is wrong later, or it is empty
//     or unreadable, its last valid content stays in force.
//   - A file that is gone takes its objects with it. A folder that cannot be
//     read keeps the last valid content of its files.
//   - An object in two files is that of the first path in byte order; the
//     second file is reported.
//   - A Pod or NetworkPolicy without a namespace is in "default". An object
//     without a uid gets one made of its kind, namespace and name.
//
// A file is best replaced by renaming another over it, and several by a link to
// their folder. One that is written in place may be read half written if the writer
// pauses.
package manifests

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Source is a directory of manifests. Its ListerWatchers may be used from any
// goroutine and wait until Run has read the directory once without an error.
type Source struct {
	dir        string // absolute, with links unresolved
	incomplete Incomplete
	metrics    *metrics

	tables map[*compile.Kind]*table
	ready  chan struct{} // closed when the directory has been read without an error

	mu   sync.Mutex
	lack error // why ready is not closed, nil once it is

	// The following fields belong to the goroutine of Run.
	readDir func(folder string) ([]fs.DirEntry, error) // os.ReadDir, except in tests
	last    [sha256.Size]byte                          // of the last read
	changes int                                        // reads that differed since one was used, at least 1 before the first use
	files   map[string]*file
	faults  map[string]fault
}

// Incomplete is called with the pods and nodes of valid files after each read with errors
// until all files have been valid.
type Incomplete func(pods []*corev1.Pod, nodes []*corev1.Node)

// New returns the Source of the manifests below dir and registers its metrics. It reads
// nothing.
func New(dir string, incomplete Incomplete, reg prometheus.Registerer) (*Source, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolve manifest directory %q: %w", dir, err)
	}
	s := &Source{
		dir:        abs,
		incomplete: incomplete,
		metrics:    newMetrics(reg),
		tables:     map[*compile.Kind]*table{},
		ready:      make(chan struct{}),
		lack:       fmt.Errorf("manifests in %s are not read yet", abs),
		readDir:    os.ReadDir,
		changes:    1,
		files:      map[string]*file{},
		faults:     map[string]fault{},
	}
	for _, k := range kinds {
		s.tables[k] = newTable(k.New(), s.ready)
	}
	return s, nil
}

// Complete returns an error with files and lines until all files have been valid at once.
func (s *Source) Complete() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lack
}

// Objects lists and watches all objects of a kind.
func (s *Source) Objects(kind *compile.Kind) cache.ListerWatcher {
	return s.tables[kind].listerWatcher("")
}

// Node lists and watches the Node of this name.
func (s *Source) Node(name string) cache.ListerWatcher {
	return s.tables[compile.KindNode].listerWatcher(name)
}
