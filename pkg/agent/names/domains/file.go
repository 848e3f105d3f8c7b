package domains

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/sealedfile"
)

const (
	// maxSaved is how many addresses the file has at most, each counted once for each of its
	// names: those of 16 pods that know MaxAddresses, or a hundred for each of 300 pods.
	maxSaved = 1 << 15
	// settleTime is how long after a change the file is written, and how often an agent
	// looks for changes while there is another agent on the node.
	settleTime = 100 * time.Millisecond
	// saveInterval is the least time between two writes while there is no other agent.
	saveInterval = 5 * time.Second
	// idleTime is how often an agent looks for another one.
	idleTime = time.Second
)

// fileFormat is that of the file. The number in its title must change with header and savedPod.
// 32,768 names of the maximum length have 20 MB.
var fileFormat = sealedfile.Format{Title: "kube-network-policies names 1 ", MaxFile: 16 << 20, MaxContent: 64 << 20}

// FileConfig configures a File.
type FileConfig struct {
	// Path is the file. Its folder must exist.
	Path string
	// Node is the name of this node, and Boot the kernel's ID of the time since it booted: the
	// file of another node is not used, nor one of before the boot, which ends all pods.
	Node, Boot string
	// Resolvers are the configured resolvers: what others taught is not used.
	Resolvers []netip.AddrPort
	// Uptime returns the time since the node booted, also while it was suspended. Unlike the
	// time of day it is never set, so lifetimes are measured by it.
	Uptime func() time.Duration
	// Alone reports whether there is no other agent on the node.
	Alone func() bool
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// File keeps what a Table has learned across restarts, and hands it over during an upgrade, when two
// agents run on the node: each reads what the other one has written. Load and Run are called from
// one goroutine.
type File struct {
	cfg   FileConfig
	table *Table
	file  sealedfile.File

	unsaved bool      // the table has changed
	saved   time.Time // when the file was written
	failed  bool      // the latest write
}

// The reasons that depend on the content.
const (
	node      sealedfile.Reason = "node"
	boot      sealedfile.Reason = "boot"
	resolvers sealedfile.Reason = "resolvers"
	clock     sealedfile.Reason = "clock"
)

// NewFile returns the file of a table. It reads and writes nothing.
func NewFile(cfg FileConfig, table *Table) *File {
	metrics := sealedfile.NewMetrics(cfg.Registerer, "names", node, boot, resolvers, clock)
	return &File{cfg: cfg, table: table, file: sealedfile.File{Path: cfg.Path, Format: fileFormat, Metrics: metrics}}
}

// Load restores what an earlier agent has saved. Without a usable file pods have to query again,
// and the log says why.
func (f *File) Load(ctx context.Context) {
	logger := klog.FromContext(ctx)
	if err := f.file.Clean(time.Now()); err != nil {
		logger.Error(err, "Unfinished files of saved names are not removed")
	}
	n, err := f.read()
	reason := sealedfile.ReasonOf(err)
	switch {
	case errors.Is(err, fs.ErrNotExist), reason == boot:
		logger.Info("No names are saved: pods that domain names allow must query them", "err", err)
	case err != nil:
		logger.Error(err, "Saved names are not used: pods that domain names allow must query them again")
	default:
		logger.Info("Saved names are read", "addresses", n)
	}
}

// read restores the file. It returns the number of addresses, each counted once for each of its
// names.
func (f *File) read() (n int, err error) {
	var h header
	var pods []savedPod
	var now time.Duration
	err = f.file.Read(func(r io.Reader) (err error) {
		if h, pods, n, err = decode(r); err != nil {
			return err
		}
		now = f.cfg.Uptime() // after reading, and before a state is taken, so that no lifetime grows
		return f.check(&h, now)
	})
	if err != nil {
		return 0, fmt.Errorf("saved names %s: %w", f.cfg.Path, err)
	}
	f.table.restore(pods, now-h.Saved)
	return n, nil
}

// check returns why a file with this header is not used.
func (f *File) check(h *header, now time.Duration) error {
	switch {
	case h.Node != f.cfg.Node:
		return sealedfile.Unusablef(node, "is of node %q, not %q", h.Node, f.cfg.Node)
	case h.Boot != f.cfg.Boot:
		return sealedfile.Unusablef(boot, "was written before the node booted")
	case !slices.Equal(h.Resolvers, f.cfg.Resolvers):
		return sealedfile.Unusablef(resolvers, "was learned from the resolvers %v, now they are %v", h.Resolvers, f.cfg.Resolvers)
	case h.Saved > now:
		return sealedfile.Unusablef(clock, "was written %v after the node booted, which is only %v ago", h.Saved, now)
	}
	return nil
}

// Run saves names until ctx ends, and then once more. While there is another agent on the node, it
// also reads what that one saves.
func (f *File) Run(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			f.end(ctx)
			return nil
		case <-f.table.changed:
			if !f.unsaved {
				f.unsaved = true
				due.Reset(settleTime)
			}
		case <-due.C:
			alone := f.cfg.Alone()
			switch {
			case f.unsaved && (!alone || time.Since(f.saved) >= saveInterval):
				f.save(ctx)
			case !alone:
				f.follow(ctx)
			}
			due.Reset(f.pause(alone))
		}
	}
}

// pause returns when to look again.
func (f *File) pause(alone bool) time.Duration {
	if f.unsaved || !alone {
		return settleTime
	}
	return idleTime
}

// lastTries is how often an agent that ends tries to save, with settleTime in between, while another
// one is saving, which takes less.
const lastTries = 5

// end saves changes that are not saved yet.
func (f *File) end(ctx context.Context) {
	select {
	case <-f.table.changed:
		f.unsaved = true
	default:
	}
	for range lastTries {
		if !f.unsaved {
			return
		}
		f.save(ctx)
		if f.failed {
			return
		}
		if f.unsaved {
			time.Sleep(settleTime)
		}
	}
}

// follow reads the file if another agent has written it.
func (f *File) follow(ctx context.Context) {
	if !f.file.Replaced() {
		return
	}
	n, err := f.read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Names that another agent has saved are not used")
		return
	}
	klog.FromContext(ctx).V(2).Info("Names that another agent has saved are read", "addresses", n)
}

// save writes the file, with what another agent has saved meanwhile. It leaves the change unsaved
// while another agent is saving. Of several errors in a row it logs the first.
func (f *File) save(ctx context.Context) {
	unlock, err := f.file.Lock()
	if errors.Is(err, sealedfile.ErrLocked) {
		return
	}
	if err == nil {
		f.follow(ctx)
		err = f.write()
		unlock()
	}
	f.unsaved, f.saved = err != nil, time.Now()
	if err != nil && !f.failed {
		klog.FromContext(ctx).Error(err, "Names are not saved: after a restart, pods that domain names allow must query them again", "file", f.cfg.Path)
	}
	f.failed = err != nil
}

func (f *File) write() error {
	h := header{Node: f.cfg.Node, Boot: f.cfg.Boot, Resolvers: f.cfg.Resolvers, Saved: f.cfg.Uptime()}
	pods := f.table.state()
	return f.file.Write(func(w io.Writer) error { return encode(w, &h, pods) })
}

// header is the first JSON value of a file. The others are savedPods.
type header struct {
	Node      string           `json:"node"`
	Boot      string           `json:"boot"`
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	Saved     time.Duration    `json:"saved"` // since the boot
}

// savedPod is what a pod has learned.
type savedPod struct {
	Owner string      `json:"p"`
	Names []savedName `json:"n"`
}

// savedName is a name, which may have any bytes, and how long each of its addresses is still known.
type savedName struct {
	Name  []byte                       `json:"n"`
	Addrs map[netip.Addr]time.Duration `json:"a"`
}

func encode(w io.Writer, h *header, pods []savedPod) error {
	e := json.NewEncoder(w)
	errs := []error{e.Encode(h)}
	for i := range pods {
		errs = append(errs, e.Encode(&pods[i]))
	}
	return errors.Join(errs...)
}

// decode reads the output of encode, and counts the addresses.
func decode(r io.Reader) (h header, pods []savedPod, n int, err error) {
	d := json.NewDecoder(r)
	if err := d.Decode(&h); err != nil {
		return h, nil, 0, fmt.Errorf("header: %w", err)
	}
	for {
		var p savedPod
		if err := d.Decode(&p); err == io.EOF {
			return h, pods, n, nil
		} else if err != nil {
			return h, nil, 0, err
		}
		if err := p.check(); err != nil {
			return h, nil, 0, fmt.Errorf("pod %q: %w", p.Owner, err)
		}
		pods = append(pods, p)
		n += p.count()
		if n > maxSaved || len(pods) > maxSaved {
			return h, nil, 0, fmt.Errorf("more than %d addresses or pods", maxSaved)
		}
	}
}

func (p *savedPod) count() (n int) {
	for _, name := range p.Names {
		n += len(name.Addrs)
	}
	return n
}

// check returns an error unless a Table may have learned p.
func (p *savedPod) check() error {
	if p.Owner == "" {
		return errors.New("no name of a pod")
	}
	for _, name := range p.Names {
		text := string(name.Name)
		if len(text) == 0 || len(text) > 255 || strings.ContainsAny(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			return fmt.Errorf("%q is no name", text)
		}
		for addr, left := range name.Addrs {
			if !addr.IsValid() || addr.Zone() != "" || addr != addr.Unmap() {
				return fmt.Errorf("%q: %v is no address", text, addr)
			}
			if left <= 0 || left > MaxTTL+Grace {
				return fmt.Errorf("%q: %v is no lifetime", text, left)
			}
		}
	}
	return nil
}
