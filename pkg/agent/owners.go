package agent

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// owners follows which pod each address of this node's pods belongs to. An address
// is stale while the kernel may track connections under it that are those of a pod
// that had it before. Its methods may be called from any goroutine.
//
// An address is stale from the snapshot on that shows another owner, or none. Only
// once the kernel steers by that snapshot its connections are removed, so that none
// can begin again unjudged. Only once the kernel knows that this is done its packets
// are no longer held: before, an answer would be taken for a first packet.
type owners struct {
	// hold is given the addresses whose packets cannot be judged, each time that
	// they may have changed. It is called under the lock, so that the last call has
	// the last word.
	hold func(map[netip.Addr]struct{})

	mu       sync.Mutex
	snapshot *policy.Snapshot
	now      map[netip.Addr]uint32 // the pods of the snapshot
	recorded map[netip.Addr]uint32 // the pods whose connections the kernel may track
	stale    map[netip.Addr]uint64 // since the wish of that serial
	settling map[netip.Addr]uint64 // not stale any more, which the wish of that serial says
	serial   uint64                // of the next wish
	inForce  uint64                // serial of the last wish that is in force
}

// nobody is recorded of a stale address: the next agent must not take any pod for the
// one that has had it all the time. A pod whose ID this is loses its connections when
// the agent restarts.
const nobody uint32 = 1

// newOwners returns the owners that an earlier agent has recorded.
func newOwners(recorded []steer.Owner, hold func(map[netip.Addr]struct{})) *owners {
	o := &owners{
		hold:     hold,
		recorded: make(map[netip.Addr]uint32, len(recorded)),
		stale:    make(map[netip.Addr]uint64),
		settling: make(map[netip.Addr]uint64),
	}
	for _, r := range recorded {
		o.recorded[r.Addr] = r.Pod
	}
	return o
}

// follow is told of each snapshot before packets are judged by it.
func (o *owners) follow(s *policy.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.now
	o.snapshot, o.now = s, make(map[netip.Addr]uint32, len(s.Local()))
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
			// On a node without a record these may be connections of the pod that is
			// there now. They go on.
			o.recorded[a] = pod
		}
	}
	o.changed(changed)
}

// changed has the next wish tell the kernel.
func (o *owners) changed(really bool) {
	if really {
		o.serial++
	}
	o.tellHeld()
}

// reached is told the serial of each wish that has come into force.
func (o *owners) reached(serial uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inForce = serial
	maps.DeleteFunc(o.settling, func(_ netip.Addr, since uint64) bool { return since <= serial })
	o.tellHeld()
}

// due returns the addresses whose connections are to be removed now.
func (o *owners) due() map[netip.Addr]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	due := make(map[netip.Addr]uint64)
	for a, since := range o.stale {
		if since <= o.inForce {
			due[a] = since
		}
	}
	return due
}

// removed is told that the connections of what was due are removed. What has
// changed hands once more meanwhile stays stale.
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

// addSets says in a wish who owns what.
func (o *owners) addSets(sets *steer.Sets) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sets.Serial = o.serial
	for _, a := range slices.SortedFunc(maps.Keys(o.recorded), netip.Addr.Compare) {
		owner := steer.Owner{Addr: a, Pod: o.recorded[a]}
		if _, stale := o.stale[a]; stale {
			owner.Pod = nobody
			if o.steers(a) {
				sets.Stale = append(sets.Stale, a)
			}
		}
		sets.Owners = append(sets.Owners, owner)
	}
}

// steers reports whether packets of an address are steered, whatever they are. Those
// of a pod that no policy selects go on: with its old connections, too.
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

func (o *owners) tellHeld() {
	held := make(map[netip.Addr]struct{}, len(o.stale)+len(o.settling))
	for a := range o.stale {
		if o.steers(a) {
			held[a] = struct{}{}
		}
	}
	for a := range o.settling {
		held[a] = struct{}{}
	}
	o.hold(held)
}
