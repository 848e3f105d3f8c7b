package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// maxFiltered is the most addresses whose connections the kernel is asked for one
// address at a time, twice each. It looks at its whole table each time, which takes
// a fortieth of the time that reading the whole table takes.
const maxFiltered = 16

// errNoFilter is about a kernel that lists more than it was asked for.
var errNoFilter = errors.New("the kernel does not filter connections")

// Remover removes the entries of addresses that have changed hands. It keeps no
// list of them: a failed run is to be repeated by the caller. It is for one
// goroutine.
type Remover struct {
	metrics  *removerMetrics
	noFilter bool // the kernel knows no filters

	open func(context.Context) (table, error) // a fake in tests
}

// NewRemover returns a Remover that has not touched the kernel yet.
func NewRemover(reg prometheus.Registerer) *Remover {
	return &Remover{metrics: newRemoverMetrics(reg), open: openKernel}
}

// Remove removes the entries of all connections that have an end at one of addrs,
// whether they are old or new, and returns nil if none of those that existed when
// it was called is left. Connections that begin meanwhile may be removed, too.
func (r *Remover) Remove(ctx context.Context, addrs []netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	start := time.Now()
	removal := removal{metrics: r.metrics, ends: make(map[netip.Addr]struct{}, len(addrs))}
	for _, a := range addrs {
		removal.ends[a] = struct{}{}
	}
	err := r.remove(ctx, &removal, addrs)
	r.metrics.ran(time.Since(start), err)
	klog.FromContext(ctx).V(2).Info("Connections of addresses removed", "addresses", len(addrs), "read", removal.read, "removed", removal.removed)
	return err
}

func (r *Remover) remove(ctx context.Context, removal *removal, addrs []netip.Addr) error {
	if r.noFilter || len(addrs) > maxFiltered {
		return r.walk(ctx, removal, filter{})
	}
	for _, a := range addrs {
		for _, reply := range []bool{false, true} {
			err := r.walk(ctx, removal, filter{end: a, reply: reply})
			if errors.Is(err, errNoFilter) {
				klog.FromContext(ctx).Info("The kernel cannot filter its table of connections, the whole of it is read each time")
				r.noFilter = true
				return r.walk(ctx, removal, filter{})
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// walk removes what it finds with one listing. It does so while it lists, so that
// nothing has to be kept of a table that may be long.
func (r *Remover) walk(ctx context.Context, removal *removal, f filter) error {
	list, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer list.close()
	edit, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer edit.close()
	return removal.walk(list, edit, f)
}

// removal is one run of a Remover.
type removal struct {
	ends          map[netip.Addr]struct{}
	metrics       *removerMetrics
	read, removed int
}

// concerns reports whether e has an end at one of the addresses.
func (r *removal) concerns(e entry) bool {
	_, opens := r.ends[e.original.addr]
	_, answers := r.ends[e.reply.addr]
	return opens || answers
}

func (r *removal) walk(list, edit table, f filter) error {
	var faults faults
	for e, err := range list.entries(f) {
		if err != nil {
			faults.add(err)
			continue
		}
		r.read++
		r.metrics.read.Inc()
		if !f.has(e) {
			return errNoFilter
		}
		if r.concerns(e) {
			r.delete(edit, e, &faults)
		}
	}
	return faults.err()
}

func (r *removal) delete(edit table, e entry, faults *faults) {
	switch err := edit.remove(e.key); {
	case errors.Is(err, unix.ENOENT): // it ended meanwhile
	case err != nil:
		faults.add(fmt.Errorf("between %s and %s: %w", e.original.addr, e.reply.addr, err))
	default:
		r.removed++
		r.metrics.removed.Inc()
	}
}
