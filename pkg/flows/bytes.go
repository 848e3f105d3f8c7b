package flows

import (
	"context"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const (
	// countInterval is the least time between two counts of bytes, and countShare the share
	// of the time that they take at most: 1/countShare.
	countInterval = 5 * time.Second
	countShare    = 20
	// countTimeout ends a count.
	countTimeout = 5 * time.Second
)

// Connection is a connection that the kernel tracks.
type Connection struct {
	Packet packet.Packet // that opened it
	// Decision is what Snapshot decides about the packet, and Would what it decides with
	// audited policies, nil if that has no other verdict.
	Decision policy.Decision
	Would    *policy.Decision
	Snapshot *policy.Snapshot
	Bytes    uint64 // in both directions
}

// countBytes finds out what the connections of flows have carried, unless that was done
// lately or is being done.
func (r *Recorder) countBytes() {
	if r.cfg.Connections == nil || !r.counting.TryLock() {
		return
	}
	defer r.counting.Unlock()
	begin := time.Now()
	if begin.Before(r.counted) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	bytes := r.allowedFlows()
	counted, err := r.cfg.Connections(ctx, func(c *Connection) {
		if k := r.flowOf(c); bytes[k] != nil {
			*bytes[k] += c.Bytes
		}
	})
	r.counted = time.Now().Add(max(countInterval, (countShare-1)*time.Since(begin)))
	if !counted || err != nil {
		clear(bytes) // what is not complete is not shown
	}
	r.setBytes(bytes)
}

// allowedFlows returns a counter for each flow that is allowed.
func (r *Recorder) allowedFlows() map[key]*uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := make(map[key]*uint64, len(r.table.flows))
	for k := range r.table.flows {
		if k.action == policy.Allow {
			bytes[k] = new(uint64)
		}
	}
	return bytes
}

// setBytes sets the bytes of all flows. Those of others are not known.
func (r *Recorder) setBytes(bytes map[key]*uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, f := range r.table.flows {
		f.bytes = bytes[k]
	}
}

// flowOf returns the key of the flow of a connection.
func (r *Recorder) flowOf(c *Connection) key {
	d := decided{packet: c.Packet, decision: c.Decision, snapshot: c.Snapshot, audited: c.Would != nil}
	if d.audited {
		d.would = *c.Would
	}
	from, to := d.ends()
	k, _ := keyOf(&d, from, to, r.cfg.Learned).class()
	return k
}
