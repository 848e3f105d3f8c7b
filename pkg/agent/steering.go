package agent

import (
	"context"
	"net/netip"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/addressreuse"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// steering keeps nftables in line with the latest snapshot.
type steering struct {
	steerer *steer.Steerer
	reuse   *addressreuse.Tracker
	observe *module.Observe // nil if no module observes packets
	sources *sources

	// mu is held while joint stages follow a snapshot.
	mu       sync.Mutex
	snapshot *policy.Snapshot // whose packets are steered, nil before the first
	desired  steer.Sets       // derived from snapshot, or from boot before the first one
	boot
}

const _ = uint(policy.FirstID - addressreuse.FirstPod) // no pod has a lower ID

// latest returns the snapshot whose packets are steered, nil before the first, and the addresses
// of sandboxes.
func (s *steering) latest() (steered *policy.Snapshot, sandboxes []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot, s.addrs
}

// LeadsAway implements policy.Routes.
func (s *steering) LeadsAway(addr netip.Addr, ranges []netip.Prefix, pods []netip.Addr) bool {
	return s.sources.links.LeadsAway(addr, ranges, pods)
}

// followOwners holds packets of addresses that belong to another pod in this snapshot.
func (s *steering) followOwners(_ context.Context, c change) {
	if !c.local {
		return
	}
	owners := make(map[netip.Addr]uint32, len(c.snapshot.Local()))
	for _, addr := range c.snapshot.Local() {
		owners[addr] = c.snapshot.Endpoint(addr).ID
	}
	s.reuse.Follow(owners, func(addr netip.Addr) bool { return steersAll(c.snapshot, addr) })
}

// steersAll reports whether all packets of a stale address are steered. Packets of a pod that
// no policy selects are not steered, not even those of old connections.
func steersAll(s *policy.Snapshot, addr netip.Addr) bool {
	if e := s.Endpoint(addr); e != nil {
		return e.Ingress != nil || e.Egress != nil
	}
	return contains(s.Ranges(policy.Ingress), addr) || contains(s.Ranges(policy.Egress), addr)
}

// follow steers the packets that a snapshot selects. The owners and the steered addresses in the
// desired state come from the same snapshot, or from earlier ones with the same local pods.
func (s *steering) follow(_ context.Context, c change) {
	s.snapshot = c.snapshot
	if c.local {
		s.desired = s.sets(c.snapshot)
	}
	s.desired.Since = c.since
	s.set()
}

// resteer applies a change of observed servers, interfaces or owners. Before the first snapshot, the
// rules of an earlier run stay in place.
func (s *steering) resteer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshot != nil {
		s.desired = s.sets(s.snapshot)
		s.set()
	}
}

// set passes the desired state to the writers of nftables rules.
func (s *steering) set() {
	s.steerer.Set(s.desired)
	s.sources.filterBridges(len(s.desired.Bridges) > 0, s.sources.otherPorts)
}

func (s *steering) sets(snapshot *policy.Snapshot) steer.Sets {
	sets := steer.Sets{
		Ingress:       snapshot.Selected(policy.Ingress),
		Egress:        snapshot.Selected(policy.Egress),
		ToHost:        snapshot.SelectedToHost(),
		Pods:          snapshot.Local(),
		IngressRanges: snapshot.Ranges(policy.Ingress),
		EgressRanges:  snapshot.Ranges(policy.Egress),
		ToHostRanges:  snapshot.RangesToHost(),
		AuditIngress:  snapshot.AuditedIn(policy.Ingress),
		AuditEgress:   snapshot.AuditedIn(policy.Egress),
		AuditToHost:   snapshot.AuditedToHost(),
		Answered:      snapshot.Rejecting(),
	}
	if s.observe != nil {
		sets.Observed, sets.Servers = s.observe.Between(snapshot)
	}
	s.sources.addSets(&sets, snapshot)
	s.reuse.AddSets(&sets)
	return sets
}
