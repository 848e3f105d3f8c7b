package agent

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

func (a *agent) newBlocker(cfg Config, reg prometheus.Registerer) (*conntrack.Blocker, error) {
	return conntrack.New(conntrack.Config{
		Mark:        cfg.BlockMark,
		AcceptedFor: cfg.RememberVerdicts,
		Alone:       func() bool { return !a.peers.others(a.numbers) },
		Registerer:  reg,
	})
}

// block blocks the connections that s denies, which differs from the snapshot before by
// change. It is not called with a saved state: connections that it denies may be allowed by
// what has changed since.
func (a *agent) block(s *policy.Snapshot, change conntrack.Change) {
	if !a.blocks {
		change = conntrack.Change{All: true}
	}
	a.blocks = true
	a.blocker.Set(established(s, a.observer), change)
}

// changeSince returns what s may evaluate otherwise than before, nil for the first snapshot.
func changeSince(before, s *policy.Snapshot) (c conntrack.Change) {
	if before == nil {
		return conntrack.Change{All: true}
	}
	c.Addrs, c.All = s.ChangedSince(before)
	if s.SameLocal(before) {
		return c
	}
	for _, addr := range append(added(before.Selected(policy.Egress), s.Selected(policy.Egress)), added(before.SelectedToHost(), s.SelectedToHost())...) {
		if !wasHeld(before, policy.Egress, addr) {
			c.Opened = append(c.Opened, addr)
		}
	}
	for _, addr := range added(before.Selected(policy.Ingress), s.Selected(policy.Ingress)) {
		if !wasHeld(before, policy.Ingress, addr) {
			c.Answered = append(c.Answered, addr)
		}
	}
	return c
}

// added returns what is in now and not in before. Both are sorted.
func added(before, now []netip.Addr) (addrs []netip.Addr) {
	for _, addr := range now {
		if _, found := slices.BinarySearchFunc(before, addr, netip.Addr.Compare); !found {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// wasHeld reports whether s is why packets of addr wait until its pod is known.
func wasHeld(s *policy.Snapshot, d policy.Direction, addr netip.Addr) bool {
	return s.Endpoint(addr) == nil && slices.ContainsFunc(s.Ranges(d), func(r netip.Prefix) bool { return r.Contains(addr) })
}

// established blocks connections that s denies permanently. Connections that depend on
// an unknown pod, or on names that may have expired, stay as they are.
func established(s *policy.Snapshot, learned policy.Learned) conntrack.Evaluator {
	anyName := &anyName{snapshot: s, names: make(map[*policy.Chain]*policy.Names)}
	return func(p packet.Packet, toHost bool) conntrack.Verdict {
		q := policy.Query{Packet: p, ToHost: toHost, Learned: learned}
		d := s.Evaluate(q)
		switch {
		case d.Reason == policy.NotSelected && d.Allowed():
			return conntrack.Unselected
		case d.Allowed():
			return conntrack.Unblock
		}
		q.Learned = anyName
		if by := s.Evaluate(q); d.Reason == policy.UnknownPod || by.Allowed() || by.Reason == policy.UnknownPod {
			return conntrack.Keep
		}
		return conntrack.Block
	}
}

// anyName gives each address all names in the policies of the pod. A connection outlives
// the names that it was allowed by: it is blocked only if it is denied whatever the
// names. It belongs to one goroutine.
type anyName struct {
	snapshot *policy.Snapshot
	names    map[*policy.Chain]*policy.Names
}

// Names implements policy.Learned.
func (a *anyName) Names(pod, _ netip.Addr) *policy.Names {
	chain := a.snapshot.Endpoint(pod).Egress
	names, ok := a.names[chain]
	if !ok {
		names = namesOf(chain)
		a.names[chain] = names
	}
	return names
}

// namesOf returns names for each domain of the chain.
func namesOf(chain *policy.Chain) *policy.Names {
	var names policy.Names
	for i := range chain.Rules {
		for _, peer := range chain.Rules[i].Peers {
			for _, d := range peer.Domains {
				names = append(names, d.Examples()...)
			}
		}
	}
	return &names
}
