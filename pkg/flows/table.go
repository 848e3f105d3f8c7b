package flows

import (
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/printable"
)

const (
	// maxFlows are recorded. Each takes up to 1,100 bytes.
	maxFlows = 4096
	// sharePerSource is the part of them that one source may have, so that it displaces its
	// own flows.
	sharePerSource = 8
	// replaceInterval is the least time in which a source replaces all flows of its share.
	// Each flow of a flood would displace one that is as new.
	replaceInterval = time.Second
	// maxSearches is how many decisions of one source are looked up in the peers of the rule
	// that decided, in a replaceInterval. One takes 13 ns for each peer of the rule.
	maxSearches = 2048
	// maxNames is how many domain names of an address are recorded.
	maxNames = 4
)

// key is what the decisions of a flow have in common.
type key struct {
	// src and dst are the zero Addr for an end that outside stands for.
	src, dst       netip.Addr
	outside        policy.Outside
	srcPod, dstPod uint32 // policy.Endpoint.ID, 0 for none
	proto          packet.Proto
	port           uint16 // of the destination
	verdict
	would   verdict // with audited policies, if audited
	audited bool
}

// verdict is a decision, by a policy of any generation.
type verdict struct {
	action    policy.Action
	direction policy.Direction
	tier      policy.Tier
	reason    policy.Reason
	policy    policyName
	rule      int
}

func verdictOf(d *policy.Decision) verdict {
	v := verdict{action: d.Action, direction: d.Direction, tier: d.Tier, reason: d.Reason}
	if ref := d.Policy; ref != nil {
		v.policy = policyName{ref.Kind, ref.Namespace, ref.Name}
	}
	if d.Reason == policy.RuleMatched {
		v.rule = d.Rule
	}
	return v
}

// policyName is a policy, of any generation.
type policyName struct{ kind, namespace, name string }

// podName is a pod; the zero podName is none.
type podName struct{ namespace, name string }

// flow is decisions that are alike.
type flow struct {
	key
	from, to    podName
	addr        netip.Addr // the first one that outside stands for
	names       []string   // of the destination, the first one, as the source knows it
	count       uint64
	bytes       *uint64 // of its connections that are open, nil if that is not known
	first, last time.Duration
	changed     uint64     // table.changes after the latest decision
	source      netip.Addr // that it counts for

	links [orders]links // in the order of all flows, and in that of its source
}

// table has the flows that were seen last. It is not safe for concurrent use.
type table struct {
	epoch       time.Time // from which times are measured
	room, share int
	flows       map[key]*flow
	all         order
	sources     map[netip.Addr]*source
	changes     uint64 // numbers changes of flows, and denials
	evicted     uint64
	lost        uint64 // decisions that are in no flow
}

// source is an address that has flows.
type source struct {
	order
	replaced, searched limit // flows that it replaced, and decisions that were looked up
}

// limit counts what happens in a replaceInterval.
type limit struct {
	begun time.Duration
	n     int
}

// allows counts one more, and reports whether there are no more than most.
func (l *limit) allows(at time.Duration, most int) bool {
	if at-l.begun >= replaceInterval {
		l.begun, l.n = at, 0
	}
	l.n++
	return l.n <= most
}

// newTable returns a table for room flows, share of one source, with times since epoch.
func newTable(epoch time.Time, room, share int) *table {
	return &table{epoch: epoch, room: room, share: share, flows: make(map[key]*flow), all: order{of: allFlows}, sources: make(map[netip.Addr]*source)}
}

// next numbers a change.
func (t *table) next() uint64 {
	t.changes++
	return t.changes
}

// add counts decisions that are alike.
func (t *table) add(d *decided, learned policy.Learned) {
	from, to := d.ends()
	source := d.responsible()
	first, last := d.first.Sub(t.epoch), d.last.Sub(t.epoch)
	if of := t.sources[source]; of != nil && d.mayHaveOutside(from, to) && !of.searched.allows(last, maxSearches) {
		t.lost += d.count
		return
	}
	one := keyOf(d, from, to, learned)
	k, addr := one.class()
	f := t.flows[k]
	if f == nil {
		if !t.makeRoom(source, last) {
			t.lost += d.count
			return
		}
		f = &flow{key: k, from: podOf(from), to: podOf(to), addr: addr, first: first, last: last, source: source}
		f.names = namesOf(&one, to, learned)
		t.flows[k] = f
	} else {
		t.unlink(f)
	}
	f.count += d.count
	f.first, f.last = min(f.first, first), max(f.last, last)
	f.changed = t.next()
	t.link(f)
}

// ends returns the pods at both ends, nil for none.
func (d *decided) ends() (from, to *policy.Endpoint) {
	return d.snapshot.Endpoint(d.packet.Src.Addr()), d.snapshot.Endpoint(d.packet.Dst.Addr())
}

// mayHaveOutside reports whether the rule that decided may name an end by a block or a
// domain. Which one has to be searched.
func (d *decided) mayHaveOutside(from, to *policy.Endpoint) bool {
	return d.decision.Reason == policy.RuleMatched && (from == nil || to == nil)
}

// keyOf returns the key of decisions about one source and one destination.
func keyOf(d *decided, from, to *policy.Endpoint, learned policy.Learned) key {
	k := key{
		src: d.packet.Src.Addr(), dst: d.packet.Dst.Addr(), proto: d.packet.Proto, port: d.packet.Dst.Port(),
		verdict: verdictOf(&d.decision), audited: d.audited,
		outside: d.snapshot.Outside(policy.Query{Packet: d.packet, Learned: learned, Defer: true}, d.decision),
	}
	if from != nil {
		k.srcPod = from.ID
	}
	if to != nil {
		k.dstPod = to.ID
	}
	if d.audited {
		k.would = verdictOf(&d.would)
	}
	return k
}

// peer returns the address of the end that is not the one whose policies decided.
func (k *key) peer() *netip.Addr {
	if k.direction == policy.Ingress {
		return &k.src
	}
	return &k.dst
}

// class returns the key of the flow. What one block or one domain allows is one, and addr is
// the address that it stands for: a pod with clients or servers all over the Internet has
// few flows. What is denied, or would be by audited policies, keeps its address, because
// whom that concerns matters.
// Record.Several has the same condition.
func (k key) class() (_ key, addr netip.Addr) {
	if k.outside != (policy.Outside{}) && k.action == policy.Allow && !k.audited {
		addr, *k.peer() = *k.peer(), netip.Addr{}
	}
	return k, addr
}

func podOf(e *policy.Endpoint) podName {
	if e == nil {
		return podName{}
	}
	return podName{e.Namespace, e.Name}
}

// namesOf returns the domain names under which the source knows a destination that is no
// pod.
func namesOf(k *key, to *policy.Endpoint, learned policy.Learned) []string {
	if learned == nil || to != nil || k.srcPod == 0 {
		return nil
	}
	names := learned.Names(k.src, k.dst)
	if names == nil {
		return nil
	}
	shown := slices.Clone((*names)[:min(len(*names), maxNames)])
	for i := range shown {
		shown[i] = printable.DomainName(shown[i]) // a server of names may answer with any bytes
	}
	return shown
}

// makeRoom removes the oldest flow, of source if it has its share, if there is no room for
// another one at a time. It reports false if there is none because source has replaced too
// many.
func (t *table) makeRoom(source netip.Addr, at time.Duration) bool {
	of := t.sources[source]
	switch {
	case of != nil && of.len >= t.share:
		if !of.replaced.allows(at, t.share) {
			return false
		}
		t.evict(of.oldest)
	case len(t.flows) >= t.room:
		t.evict(t.all.oldest)
	}
	return true
}

func (t *table) evict(f *flow) {
	t.unlink(f)
	delete(t.flows, f.key)
	if t.sources[f.source].len == 0 {
		delete(t.sources, f.source)
	}
	t.evicted++
}

// link makes f the newest flow.
func (t *table) link(f *flow) {
	of := t.sources[f.source]
	if of == nil {
		of = &source{order: order{of: sameSource}}
		t.sources[f.source] = of
	}
	t.all.add(f)
	of.add(f)
}

// unlink removes f from both orders. That of its source may be empty then.
func (t *table) unlink(f *flow) {
	t.all.remove(f)
	t.sources[f.source].remove(f)
}
