package agent

import (
	"context"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// block blocks the connections that a snapshot denies. A snapshot of a saved state blocks
// none: changes since it was saved may allow them.
func (a *agent) block(_ context.Context, c change) {
	if !c.listed {
		return
	}
	affected := conntrack.Change{All: true}
	if a.blocks {
		affected = c.affected()
	}
	a.blocks = true
	affected = withRouted(affected, a.enforcer.Interfaces())
	affected.Closed = closedEnds(c.snapshot)
	a.blocker.Set(established(c.snapshot, learnedNames{a}, a.enforcer.Interfaces, a.steering), affected)
	if len(affected.Links) > 0 {
		a.blocker.Recheck()
	}
}

// withRouted adds the addresses that the node routes to the pods in c, and the interfaces by which it routes
// networks to some: then any connection may have changed, and which are not known cannot be listed by address.
func withRouted(c conntrack.Change, i *enforce.Interfaces) conntrack.Change {
	routes := routesOf(i)
	add := func(list []netip.Addr) []netip.Addr {
		for _, r := range routes {
			behind := i.Links[r.Link]
			switch {
			case !slices.ContainsFunc(behind.Pod, func(a netip.Addr) bool { return slices.Contains(list, a) }):
			case r.To.IsSingleIP():
				list = append(slices.Clip(list), r.To.Addr())
			case !slices.Contains(c.Links, behind.Name):
				c.Links = append(c.Links, behind.Name)
			}
		}
		return list
	}
	c.Addrs, c.Opened, c.Answered = add(c.Addrs), add(c.Opened), add(c.Answered)
	c.All = c.All || len(c.Links) > 0
	return c
}

// closedEnds returns the pods for which s denies everything in a direction.
func closedEnds(s *policy.Snapshot) (ends []conntrack.End) {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for _, addr := range s.Closed(d) {
			ends = append(ends, conntrack.End{Addr: addr, Ingress: d == policy.Ingress})
		}
	}
	return ends
}

// override makes nftables do what o says.
func (a *agent) override(ctx context.Context, o conntrack.Overrides) error {
	return a.steering.steerer.Override(ctx, steer.Overrides{
		Denied: o.Denied, Ended: o.Ended,
		Closed: steerEnds(o.Closed), Opened: steerEnds(o.Opened), Again: steerEnds(o.Again), Marked: steerEnds(o.Marked),
		Complete: o.Complete,
	})
}

func steerEnds(ends []conntrack.End) (converted []steer.End) {
	for _, e := range ends {
		converted = append(converted, steer.End(e))
	}
	return converted
}

// accepted is the tap of the blocker.
func (a *agent) accepted(ev *event.Event) {
	if ev.Accepted() {
		a.blocker.Accepted(ev.Packet, ev.EitherWay)
	}
}

// recheck evaluates the connections that were accepted while another process had changed the
// rules. That process may have changed the rules of bridges, too.
func (a *agent) recheck() {
	for _, p := range a.parts {
		if p.Repaired != nil {
			p.Repaired()
		}
	}
	a.blocker.Recheck()
}

// changeSince returns the connections whose verdict may differ between before and s. before
// is nil for the first snapshot.
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

// added returns the addresses of now that are not in before. Both are sorted.
func added(before, now []netip.Addr) (addrs []netip.Addr) {
	for _, addr := range now {
		if _, found := slices.BinarySearchFunc(before, addr, netip.Addr.Compare); !found {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// wasHeld reports whether s holds packets of addr until its pod is known.
func wasHeld(s *policy.Snapshot, d policy.Direction, addr netip.Addr) bool {
	return s.Endpoint(addr) == nil && contains(s.Ranges(d), addr)
}

// established returns an evaluator that blocks connections that s denies permanently. interfaces returns
// the current ones: they do not follow snapshots. Connections that depend on an unknown pod, or on names
// that may have expired, stay as they are. Where equal routes lead to several pods, a connection is of one
// of them, so it is blocked if it is denied for all.
func established(s *policy.Snapshot, learned policy.Learned, interfaces func() *enforce.Interfaces, routes policy.Routes) conntrack.Evaluator {
	anyName := &anyName{snapshot: s, names: make(map[*policy.Chain]*policy.Names)}
	return func(p packet.Packet, toHost bool) (verdict conntrack.Verdict) {
		q := policy.Query{Packet: p, ToHost: toHost, Learned: learned, Routes: routes}
		if toHost {
			return evaluateEstablished(s, q, anyName)
		}
		ends := interfaces().EndsOf(p, s)
		for _, e := range ends {
			q.Sender, q.Receiver = e.Sender, e.Receiver
			v := evaluateEstablished(s, q, anyName)
			if len(ends) > 1 {
				v = min(v, conntrack.Unblock) // the next change may not name its addresses
			}
			verdict = max(verdict, v)
		}
		return verdict
	}
}

func evaluateEstablished(s *policy.Snapshot, q policy.Query, anyName *anyName) conntrack.Verdict {
	d := s.Evaluate(q)
	routed := q.Sender.IsValid() || q.Receiver.IsValid() // a change does not name its addresses
	switch {
	case d.Reason == policy.NotSelected && d.Allowed() && !routed:
		return conntrack.Unselected
	case d.Allowed():
		return conntrack.Unblock
	}
	q.Learned = anyName
	if named := s.Evaluate(q); d.Wait() != policy.NoWait || named.Allowed() || named.Wait() != policy.NoWait {
		return conntrack.Keep
	}
	return conntrack.Block
}

// anyName gives each address all names in the policies of the pod. A connection outlives the
// names that allowed it, so it is blocked only if no name would allow it. anyName belongs to
// one goroutine.
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
