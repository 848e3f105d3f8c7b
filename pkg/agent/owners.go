package agent

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// owners tracks which pod owns each address of the node's pod ranges. An address is
// stale while the kernel may track connections of an earlier owner. Its methods may be
// called from any goroutine.
//
// An address becomes stale with a snapshot in which it has another owner, or none. Its
// connections are removed once that snapshot is applied to nftables, so that none can
// be established again without a decision. Its packets stay pending until the end of
// staleness is applied, too: before, a reply would be taken for a first packet.
type owners struct {
	// setPending is called with the addresses whose packets cannot be decided, each
	// time that they may have changed. It is called with the lock held, to keep the
	// order of calls.
	setPending func(map[netip.Addr]struct{})

	mu       sync.Mutex
	snapshot *policy.Snapshot
	now      map[netip.Addr]uint32 // the owners in the snapshot
	recorded map[netip.Addr]uint32 // the owners whose connections the kernel may track
	stale    map[netip.Addr]uint64 // by the serial of steer.Sets since which they are
	settling map[netip.Addr]uint64 // no longer stale, by the serial that says so
	serial   uint64                // of the next steer.Sets
	applied  uint64                // serial of the last applied steer.Sets
}

// noOwner is recorded for a stale address, so that the next agent takes every pod for a
// new owner.
const noOwner uint32 = 1

const _ = uint(policy.FirstID - 1 - noOwner) // no pod has this ID

// newOwners returns the owners that an earlier agent has recorded.
func newOwners(recorded []steer.Owner, setPending func(map[netip.Addr]struct{})) *owners {
	o := &owners{
		setPending: setPending,
		recorded:   make(map[netip.Addr]uint32, len(recorded)),
		stale:      make(map[netip.Addr]uint64),
		settling:   make(map[netip.Addr]uint64),
	}
	for _, r := range recorded {
		o.recorded[r.Addr] = r.Pod
	}
	return o
}

// any reports whether an address has an owner.
func (o *owners) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.recorded) > 0
}

// follow is called with each snapshot before packets are decided by it.
func (o *owners) follow(s *policy.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	latest, before := o.snapshot, o.now
	o.snapshot = s
	if latest != nil && s.SameLocal(latest) {
		return
	}
	o.now = make(map[netip.Addr]uint32, len(s.Local()))
	for _, a := range s.Local() {
		o.now[a] = s.Endpoint(a).ID
	}
	changed := false
	for a, pod := range o.recorded {
		_, stale := o.stale[a]
		if o.now[a] == before[a] && stale || o.now[a] == pod && !stale {
			continue
		}
		o.stale[a], changed = o.serial+1, true
	}
	for a, pod := range o.now {
		if _, known := o.recorded[a]; !known {
			// On a node without a record these may be connections of the current
			// owner. They are kept.
			o.recorded[a] = pod
		}
	}
	o.changed(changed)
}

// changed starts a new serial if really, and updates the pending addresses.
func (o *owners) changed(really bool) {
	if really {
		o.serial++
	}
	o.updatePending()
}

// markApplied is called with the serial of each applied steer.Sets.
func (o *owners) markApplied(serial uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.applied = serial
	maps.DeleteFunc(o.settling, func(_ netip.Addr, since uint64) bool { return since <= serial })
	o.updatePending()
}

// due returns the addresses whose connections are to be removed now.
func (o *owners) due() map[netip.Addr]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	due := make(map[netip.Addr]uint64)
	for a, since := range o.stale {
		if since <= o.applied {
			due[a] = since
		}
	}
	return due
}

// removed is called after the connections of the due addresses were removed. An address
// whose owner has changed again meanwhile stays stale.
func (o *owners) removed(due map[netip.Addr]uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for a, since := range due {
		if o.stale[a] != since {
			continue
		}
		delete(o.stale, a)
		o.settling[a] = o.serial + 1
		if pod, ok := o.now[a]; ok {
			o.recorded[a] = pod
		} else {
			delete(o.recorded, a)
		}
	}
	o.changed(len(due) > 0)
}

// addSets adds the owners and the stale addresses.
func (o *owners) addSets(sets *steer.Sets) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sets.Serial = o.serial
	for _, a := range slices.SortedFunc(maps.Keys(o.recorded), netip.Addr.Compare) {
		owner := steer.Owner{Addr: a, Pod: o.recorded[a]}
		if _, stale := o.stale[a]; stale {
			owner.Pod = noOwner
			if o.steers(a) {
				sets.Stale = append(sets.Stale, a)
			}
		}
		sets.Owners = append(sets.Owners, owner)
	}
}

// steers reports whether all packets of a stale address are steered. Those of a pod that
// no policy selects are not, not even those of old connections.
func (o *owners) steers(a netip.Addr) bool {
	if e := o.snapshot.Endpoint(a); e != nil {
		return e.Ingress != nil || e.Egress != nil
	}
	in := func(r netip.Prefix) bool { return r.Contains(a) }
	return slices.ContainsFunc(o.snapshot.Ranges(policy.Ingress), in) || slices.ContainsFunc(o.snapshot.Ranges(policy.Egress), in)
}

// staleCount is for metrics.
func (o *owners) staleCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.stale)
}

func (o *owners) updatePending() {
	pending := make(map[netip.Addr]struct{}, len(o.stale)+len(o.settling))
	for a := range o.stale {
		if o.steers(a) {
			pending[a] = struct{}{}
		}
	}
	for a := range o.settling {
		pending[a] = struct{}{}
	}
	o.setPending(pending)
}
