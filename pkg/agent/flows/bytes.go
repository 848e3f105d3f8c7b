package flows

import (
	"context"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// countInterval is the least time between two counts of bytes, and 1/countLimit the
	// largest part of the time that counts take.
	countInterval = 5 * time.Second
	countLimit    = 20
	// countTimeout ends a count that takes too long.
	countTimeout = 5 * time.Second
)

// countBytes updates the bytes that connections of flows have carried, unless that was done
// recently or is in progress.
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
	counted, err := r.cfg.Connections(ctx, func(c *module.Connection) {
		if k := r.flowOf(c); bytes[k] != nil {
			*bytes[k] += c.Bytes
		}
	})
	r.counted = time.Now().Add(max(countInterval, (countLimit-1)*time.Since(begin)))
	if !counted || err != nil {
		clear(bytes) // incomplete counts are not shown
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

// setBytes sets the bytes of all flows, nil for flows that are not in bytes.
func (r *Recorder) setBytes(bytes map[key]*uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, f := range r.table.flows {
		f.bytes = bytes[k]
	}
}

// flowOf returns the key of the flow of a connection.
func (r *Recorder) flowOf(c *module.Connection) key {
	d := decided{packet: c.Packet, decision: c.Decision, snapshot: c.Snapshot, audited: c.Would != nil}
	if d.audited {
		d.would = *c.Would
	}
	from, to := d.ends()
	k, _ := keyOf(&d, from, to, r.cfg.Learned).class()
	return k
}
