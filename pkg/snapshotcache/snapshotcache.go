// Package snapshotcache keeps what a node knows of its cluster in a file, so that an agent
// that starts can enforce policies before the API server has answered. It owns the format
// of the file and when a file is believed. It knows nothing of what objects mean, nor of
// when they change.
//
// The file is a line with the version of the format and the SHA-256 of the rest, and the
// rest is the JSON of a State, compressed. It is replaced in one step. It is not synced to
// the disk: a file that a power failure has damaged is ignored.
package snapshotcache

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

const (
	// title is the beginning of a file. Its number changes with the content: with the
	// fields of pod, and with what policycache keeps of an object.
	title = "kube-network-policies snapshot 2 "
	// maxFile and maxContent bound the file and what it expands to, in bytes. The state
	// of a cluster of 100,000 pods has about 4 MB and 40 MB.
	maxFile, maxContent = 64 << 20, 512 << 20
	// maxSkew is how far in the future a file may be, for clocks that are adjusted.
	maxSkew = time.Minute
)

// Config is which file to use, and when it is believed.
type Config struct {
	// Path is the file. Its folder must exist.
	Path string
	// MaxAge is how long ago the state may have been current.
	MaxAge time.Duration
	// Node is the name of this node, and Kinds the kinds of policy that are enabled: a
	// file of another node or of other kinds is not used.
	Node  string
	Kinds []*compile.Kind
	// Boot is the kernel's ID of the time since it booted, see BootID.
	Boot string
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
}

// Cache is the file. Its methods must not be called at the same time.
type Cache struct {
	cfg           Config
	kinds         []string
	reads, writes *prometheus.CounterVec
	size          prometheus.Gauge
	file          fs.FileInfo // of the file as last read or written, nil if it was neither
}

// New returns the Cache of a file. It reads and writes nothing.
func New(cfg Config) *Cache {
	c := &Cache{
		cfg: cfg,
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_snapshot_cache_reads_total",
			Help: "Times that the snapshot cache was read, by result.",
		}, []string{"result"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_snapshot_cache_writes_total",
			Help: "Times that the snapshot cache was written, by result.",
		}, []string{"result"}),
		size: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "netpol_snapshot_cache_bytes",
			Help: "Size of the snapshot cache when it was last written.",
		}),
	}
	for _, k := range compile.Kinds {
		if k.Enabled(cfg.Kinds) {
			c.kinds = append(c.kinds, k.Name)
		}
	}
	cfg.Registerer.MustRegister(c.reads, c.writes, c.size)
	for _, r := range []reason{used, missing, unreadable, version, corrupt, node, kinds, age} {
		c.reads.WithLabelValues(string(r))
	}
	for _, result := range []string{"success", "error"} {
		c.writes.WithLabelValues(result)
	}
	return c
}

// MaxAge returns how long ago a state may have been current that is used.
func (c *Cache) MaxAge() time.Duration { return c.cfg.MaxAge }

// BootID returns the kernel's random ID of the time since it booted.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// reason is why a file is used or not.
type reason string

const (
	used       reason = "used"
	missing    reason = "missing"
	unreadable reason = "unreadable"
	version    reason = "version"
	corrupt    reason = "corrupt"
	node       reason = "node"
	kinds      reason = "kinds"
	age        reason = "age"
)

// unusable is the error of a file that is not used.
type unusable struct {
	reason reason
	err    error
}

func (u *unusable) Error() string { return u.err.Error() }
func (u *unusable) Unwrap() error { return u.err }

func unusablef(r reason, format string, args ...any) error {
	return &unusable{r, fmt.Errorf(format, args...)}
}

// Read returns the state in the file, if it is to be used at this time. share is called with
// each pod. If the node has booted since, its own pods have no addresses: they get
// others. An error that wraps fs.ErrNotExist means that there is no file.
func (c *Cache) Read(now time.Time, share func(*compile.Pod)) (*State, error) {
	s, err := c.read(now, share)
	if err != nil {
		err = fmt.Errorf("snapshot cache %s: %w", c.cfg.Path, err)
		if u := (*unusable)(nil); errors.As(err, &u) {
			c.reads.WithLabelValues(string(u.reason)).Inc()
		}
		return nil, err
	}
	c.reads.WithLabelValues(string(used)).Inc()
	return s, nil
}

func (c *Cache) read(now time.Time, share func(*compile.Pod)) (*State, error) {
	content, err := c.readFile()
	if err != nil {
		return nil, err
	}
	s, err := Decode(content, share)
	if err != nil {
		return nil, err
	}
	if s.Node != c.cfg.Node {
		return nil, unusablef(node, "is of node %q, not %q", s.Node, c.cfg.Node)
	}
	if !slices.Equal(s.Kinds, c.kinds) {
		return nil, unusablef(kinds, "was written with the kinds of policy %s enabled, now they are %s", strings.Join(s.Kinds, ", "), strings.Join(c.kinds, ", "))
	}
	if old := now.Sub(s.Known); old > c.cfg.MaxAge || old < -maxSkew {
		return nil, unusablef(age, "was current at %s, which is %s ago; the maximum is %s", s.Known.UTC().Format(time.RFC3339), old.Round(time.Second), c.cfg.MaxAge)
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

// readFile reads the file if it is not too long.
func (c *Cache) readFile() ([]byte, error) {
	f, err := os.Open(c.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &unusable{missing, err}
	} else if err != nil {
		return nil, &unusable{unreadable, err}
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil {
		c.file, err = f.Stat()
	}
	if err != nil {
		return nil, &unusable{unreadable, err}
	}
	if len(content) > maxFile {
		return nil, unusablef(corrupt, "has more than %d bytes", maxFile)
	}
	return content, nil
}

// Decode returns the state in the content of a file. share is called with each pod.
func Decode(content []byte, share func(*compile.Pod)) (*State, error) {
	head, body, ok := bytes.Cut(content, []byte("\n"))
	sum, isVersion := bytes.CutPrefix(head, []byte(title))
	if !ok || !isVersion {
		return nil, unusablef(version, "does not begin with %q: another version has written it, or it is no snapshot", title)
	}
	if string(sum) != checksum(body) {
		return nil, unusablef(corrupt, "is damaged: the checksum is wrong")
	}
	s, err := decompress(body, share)
	if err != nil {
		return nil, unusablef(corrupt, "cannot be read: %w", err)
	}
	return s, nil
}

func decompress(body []byte, share func(*compile.Pod)) (*State, error) {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return decode(io.LimitReader(r, maxContent), share)
}

func checksum(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }

// Encode returns the content of a file with the state.
func Encode(s *State) ([]byte, error) {
	var body bytes.Buffer
	w, _ := gzip.NewWriterLevel(&body, gzip.BestSpeed) // which is a level
	if err := errors.Join(encode(w, s), w.Close()); err != nil {
		return nil, err
	}
	return slices.Concat([]byte(title), []byte(checksum(body.Bytes())), []byte("\n"), body.Bytes()), nil
}

// Write replaces the file. Node, Boot and Kinds of the state are this node's.
func (c *Cache) Write(s *State) error {
	s.Node, s.Boot, s.Kinds = c.cfg.Node, c.cfg.Boot, c.kinds
	n, err := c.write(s)
	if err != nil {
		c.writes.WithLabelValues("error").Inc()
		return fmt.Errorf("write snapshot cache %s: %w", c.cfg.Path, err)
	}
	c.writes.WithLabelValues("success").Inc()
	c.size.Set(float64(n))
	return nil
}

func (c *Cache) write(s *State) (n int, err error) {
	content, err := Encode(s)
	if err != nil {
		return 0, err
	}
	if len(content) > maxFile {
		return 0, fmt.Errorf("%d bytes are more than %d", len(content), maxFile)
	}
	// Two agents may write at the same time, while one hands over to the other.
	f, err := os.CreateTemp(filepath.Dir(c.cfg.Path), temporary(c.cfg.Path)) // with mode 0600
	if err != nil {
		return 0, err
	}
	_, err = f.Write(content)
	file, errStat := f.Stat()
	if err = errors.Join(err, errStat, f.Close()); err == nil {
		err = os.Rename(f.Name(), c.cfg.Path)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(f.Name()))
	}
	c.file = file
	return len(content), nil
}

// Replaced reports whether another agent has written the file since this one has last read or
// written it. What that one knows is newer, and so may be its format.
func (c *Cache) Replaced() bool {
	file, err := os.Stat(c.cfg.Path)
	switch {
	case err != nil:
		return false
	case c.file == nil:
		return true
	}
	// A file system may give the number of a file that is gone to another one.
	return !os.SameFile(c.file, file) || !c.file.ModTime().Equal(file.ModTime())
}

// temporary is the pattern of names of files that are being written.
func temporary(path string) string { return "." + filepath.Base(path) + ".*" }

// abandonedAfter is how old a file is whose writer has certainly ended: writing takes less than
// a second.
const abandonedAfter = time.Minute

// Clean removes files that an agent that was killed had begun to write. It leaves those alone
// that another agent may be writing at this time.
func (c *Cache) Clean(now time.Time) error {
	names, err := unfinished(c.cfg.Path)
	for _, name := range names {
		if file, errStat := os.Stat(name); errStat == nil && now.Sub(file.ModTime()) > abandonedAfter {
			err = errors.Join(err, remove(name))
		}
	}
	return err
}

// Remove removes the file at path, and those that were being written in its place.
func Remove(path string) error {
	names, err := unfinished(path)
	for _, name := range append(names, path) {
		err = errors.Join(err, remove(name))
	}
	return err
}

// unfinished returns the names of files that are or were being written in the place of path.
func unfinished(path string) ([]string, error) {
	return filepath.Glob(filepath.Join(filepath.Dir(path), temporary(path)))
}

// remove removes a file unless it is gone.
func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
