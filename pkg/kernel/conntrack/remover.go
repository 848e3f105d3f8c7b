package conntrack

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Remover removes the entries of addresses whose pod has changed. It does not remember the
// addresses: the caller retries a failed run. It must not be used by several goroutines.
type Remover struct {
	removed    prometheus.Counter
	unfiltered unfiltered
	renewed    Renewed

	// Fakes in tests.
	open  func(context.Context) (table, error)
	count func() (int, error)
}

// Renewed returns the first packets of connections that stay. It is called after each piece of a list.
type Renewed func(context.Context) (map[packet.Packet]struct{}, error)

// NewRemover returns a Remover with the two sockets of a removal.
func NewRemover(renewed Renewed, reg prometheus.Registerer) (*Remover, error) {
	var sockets sockets
	if err := sockets.prepare(2); err != nil {
		return nil, err
	}
	return &Remover{renewed: renewed, removed: newRemoved(reg), unfiltered: make(unfiltered), open: sockets.open, count: countEntries}, nil
}

// Remove removes the entries of all connections that have an end at one of addrs and are not renewed. It
// returns nil if none is left of those that existed when it was called. It may also remove connections
// that begin meanwhile.
func (r *Remover) Remove(ctx context.Context, addrs []netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	removal := removal{counter: r.removed, ends: make(map[netip.Addr]struct{}, len(addrs))}
	for _, a := range addrs {
		removal.ends[a] = struct{}{}
	}
	removal.renewed = func() (map[packet.Packet]struct{}, error) { return r.renewed(ctx) }
	err := r.remove(ctx, &removal, addrs)
	klog.FromContext(ctx).V(2).Info("Connections of addresses removed", "addresses", len(addrs), "read", removal.read, "removed", removal.removed)
	return err
}

func (r *Remover) remove(ctx context.Context, removal *removal, addrs []netip.Addr) error {
	if len(addrs) > maxFiltered || fewConnections(r.count) {
		return r.walk(ctx, removal, filter{})
	}
	// A flowtable forwards packets of these past all rules.
	if err := r.walk(ctx, removal, offloadedOnes); err != nil {
		return err
	}
	var filters []filter
	for _, a := range addrs {
		filters = append(filters, openedBy(a), answeredBy(a))
	}
	filters, err := r.unfiltered.listable(ctx, r.open, r.count, filters, func() {})
	for _, f := range filters {
		err = errors.Join(err, r.walk(ctx, removal, f))
	}
	return err
}

// walk lists connections and removes those of the addresses at the same time, so that it keeps
// nothing of a possibly long table in memory.
func (r *Remover) walk(ctx context.Context, removal *removal, f filter) error {
	list, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer list.close()
	writer, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer writer.close()
	return removal.walk(list.entries(f), writer)
}

// removal is one run of a Remover.
type removal struct {
	ends          map[netip.Addr]struct{}
	renewed       func() (map[packet.Packet]struct{}, error)
	counter       prometheus.Counter
	read, removed int
}

// concerns reports whether e has an end at one of the addresses.
func (r *removal) concerns(e entry) bool {
	_, opens := r.ends[e.original.addr]
	_, answers := r.ends[e.reply.addr]
	return opens || answers
}

func (r *removal) walk(entries iter.Seq2[entry, error], writer table) error {
	var faults faults
	var found []candidate
	for e, err := range entries {
		if err != nil {
			faults.add(err)
			continue
		}
		r.read++
		if !r.concerns(e) {
			continue
		}
		first, ok := e.first()
		if !ok || !first.Proto.HasPorts() {
			first = packet.Packet{} // not renewed, see steer.Steerer.Renewed
		}
		found = append(found, candidate{first, request{key: e.key.clone(), remove: true}})
		if len(found) == removalLen {
			r.delete(writer, found, &faults)
			found = found[:0]
		}
	}
	if len(found) > 0 {
		r.delete(writer, found, &faults)
	}
	return faults.err()
}

// removalLen is the number of connections that are removed at a time.
const removalLen = 1 << 12

// candidate is an entry that is removed unless its connection is renewed.
type candidate struct {
	first  packet.Packet
	remove request
}

// delete removes candidates. A renewed connection was recorded before its entry could be found.
func (r *removal) delete(writer table, found []candidate, faults *faults) {
	renewed, err := r.renewed()
	if err != nil {
		faults.add(err)
		return
	}
	var requests []request
	for _, c := range found {
		if _, stays := renewed[c.first]; !stays {
			requests = append(requests, c.remove)
		}
	}
	for _, err := range writer.change(requests) {
		switch {
		case errors.Is(err, unix.ENOENT): // it ended meanwhile
		case err != nil:
			faults.add(err)
		default:
			r.removed++
			r.counter.Inc()
		}
	}
}
