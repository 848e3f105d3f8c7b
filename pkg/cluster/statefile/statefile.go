// Package statefile saves a node's view of its cluster in a file, so that a starting agent
// can enforce policies before the API server answers. It defines the content of the file, the
// JSON of a State, and when a file is valid. It does not know what objects mean or when they
// change.
package statefile

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/base/sealedfile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// maxSkew is how far in the future the time of a file may be, because clocks are adjusted.
const maxSkew = time.Minute

// format is that of the file. The number in its title must change with the content: the fields
// of pod, and the fields of objects that clusterwatch keeps. The state of a cluster of 100,000
// pods has about 4 MB, and 40 MB uncompressed.
var format = sealedfile.Format{Title: "kube-network-policies snapshot 3 ", MaxFile: 64 << 20, MaxContent: 512 << 20}

// Config configures a Cache.
type Config struct {
	// Path is the file. Its folder must exist.
	Path string
	// MaxAge is the greatest time since the state was current.
	MaxAge time.Duration
	// Node is the name of this node, and Kinds the kinds of policy that are enabled: a
	// file of another node or of other kinds is not used.
	Node  string
	Kinds []*compile.Kind
	// Boot is the kernel's ID of the time since it booted.
	Boot string
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Cache is the file. Its methods must not be called concurrently.
type Cache struct {
	cfg   Config
	kinds []string
	file  sealedfile.File
}

// New returns the Cache of a file. It reads and writes nothing.
func New(cfg Config) *Cache {
	c := &Cache{cfg: cfg, file: sealedfile.File{Path: cfg.Path, Format: format, Metrics: sealedfile.NewMetrics(cfg.Registerer, "state", node, kinds, age)}}
	for _, k := range compile.Kinds {
		if k.Enabled(cfg.Kinds) {
			c.kinds = append(c.kinds, k.Name)
		}
	}
	return c
}

// MaxAge returns the greatest age of a usable state.
func (c *Cache) MaxAge() time.Duration { return c.cfg.MaxAge }

// The reasons that depend on the content.
const (
	node  sealedfile.Reason = "node"
	kinds sealedfile.Reason = "kinds"
	age   sealedfile.Reason = "age"
)

// Read returns the state in the file if it is valid at this time. It calls share with each
// pod. If the node has booted since, its own pods are returned without addresses, because
// they get new ones. The error wraps fs.ErrNotExist if there is no file.
func (c *Cache) Read(now time.Time, share func(*compile.Pod)) (*State, error) {
	var s *State
	err := c.file.Read(func(r io.Reader) (err error) {
		if s, err = decode(r, share); err != nil {
			return err
		}
		return c.check(&s.Header, now)
	})
	if err != nil {
		return nil, fmt.Errorf("snapshot cache %s: %w", c.cfg.Path, err)
	}
	if s.Boot != c.cfg.Boot {
		for _, p := range s.Pods {
			if p.Node == c.cfg.Node {
				p.Addrs = nil
			}
		}
	}
	return s, nil
}

// check returns why a state with this header is not used.
func (c *Cache) check(s *Header, now time.Time) error {
	if s.Node != c.cfg.Node {
		return sealedfile.Unusablef(node, "is of node %q, not %q", s.Node, c.cfg.Node)
	}
	if !slices.Equal(s.Kinds, c.kinds) {
		return sealedfile.Unusablef(kinds, "was written with the kinds of policy %s enabled, now they are %s", strings.Join(s.Kinds, ", "), strings.Join(c.kinds, ", "))
	}
	if old := now.Sub(s.Known); old > c.cfg.MaxAge || old < -maxSkew {
		return sealedfile.Unusablef(age, "was current at %s, which is %s ago; the maximum is %s", s.Known.UTC().Format(time.RFC3339), old.Round(time.Second), c.cfg.MaxAge)
	}
	return nil
}

// Write replaces the file. Node, Boot and Kinds of the state are this node's.
func (c *Cache) Write(s *State) error {
	s.Node, s.Boot, s.Kinds = c.cfg.Node, c.cfg.Boot, c.kinds
	if err := c.file.Write(func(w io.Writer) error { return encode(w, s) }); err != nil {
		return fmt.Errorf("write snapshot cache %s: %w", c.cfg.Path, err)
	}
	return nil
}

// Replaced reports whether another agent has written the file since this one last read or
// wrote it. The other agent's state is newer, and its format may be too.
func (c *Cache) Replaced() bool { return c.file.Replaced() }

// Clean removes temporary files of killed agents. It leaves files alone that another agent
// may be writing.
func (c *Cache) Clean(now time.Time) error { return c.file.Clean(now) }
