package flows

import (
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// maxFlows is how many flows are recorded. Each takes up to 1,400 bytes.
	maxFlows = 4096
	// sharePerSource bounds the flows of one source to maxFlows/sharePerSource, so that a
	// busy source displaces its own flows.
	sharePerSource = 8
	// replaceInterval is the least time in which a source replaces its whole share. In a
	// flood, each flow would only displace one that is as new.
	replaceInterval = time.Second
	// maxSearches is how many decisions of one source are searched in the peers of the
	// deciding rule in a replaceInterval. A search takes 13 ns for each peer of the rule.
	maxSearches = 2048
	// maxNames is how many domain names of an address are recorded.
	maxNames = 4
)

// key identifies a flow: its decisions have it in common.
type key struct {
	// src or dst is the zero Addr if outside replaces it.
	src, dst       netip.Addr
	outside        policy.Outside
	srcPod, dstPod uint32 // policy.Endpoint.ID, 0 for none
	proto          packet.Proto
	port           uint16 // of the destination
	verdict
	would   verdict // with audited policies, if audited
	audited bool
}

// verdict is a decision, regardless of the policy's generation.
type verdict struct {
	action    policy.Action
	direction policy.Direction
	tier      policy.Tier
	reason    policy.Reason
	disputed  bool
	policy    policyName
	rule      int
}

func verdictOf(d *policy.Decision) verdict {
	v := verdict{action: d.Action, direction: d.Direction, tier: d.Tier, reason: d.Reason, disputed: d.Disputed}
	if ref := d.Policy; ref != nil {
		v.policy = policyName{ref.Kind, ref.Namespace, ref.Name}
	}
	if d.Reason == policy.RuleMatched {
		v.rule = d.Rule
	}
	return v
}

// policyName identifies a policy, regardless of its generation.
type policyName struct{ kind, namespace, name string }

// podName is a pod; the zero podName is none.
type podName struct{ namespace, name string }

// flow counts similar decisions.
type flow struct {
	key
	from, to    podName
	addr        netip.Addr // the first address that outside replaces
	names       []string   // of the first destination, as resolved by the source
	why         string     // of the latest denial that has one, see Config.Why
	count       uint64
	bytes       *uint64 // of its open connections, nil if unknown
	first, last time.Duration
	changed     uint64     // table.changes after the latest decision
	source      netip.Addr // the address that the flow counts for

	links [orders]links // by list
}

// table holds the most recently seen flows. It is not safe for concurrent use.
type table struct {
	epoch       time.Time // the zero of all times
	room, share int
	flows       map[key]*flow
	all         order
	sources     map[netip.Addr]*source
	changes     uint64 // number of the latest change of a flow or denial
	evicted     uint64
	lost        uint64 // decisions in no flow
}

// source is an address that has flows.
type source struct {
	order
	replaced, searched limit // replaced flows, and searched decisions
}

// limit counts events in a replaceInterval.
type limit struct {
	begun time.Duration
	n     int
}

// allows counts an event, and reports whether there were at most limit.
func (l *limit) allows(at time.Duration, limit int) bool {
	if at-l.begun >= replaceInterval {
		l.begun, l.n = at, 0
	}
	l.n++
	return l.n <= limit
}

// newTable returns a table for room flows, at most share per source, with times since epoch.
func newTable(epoch time.Time, room, share int) *table {
	return &table{epoch: epoch, room: room, share: share, flows: make(map[key]*flow), all: order{list: allFlows}, sources: make(map[netip.Addr]*source)}
}

// next returns the number of a new change.
func (t *table) next() uint64 {
	t.changes++
	return t.changes
}

// add counts d in its flow, and returns it. It returns nil if there is no room for a new one.
func (t *table) add(d *decided, learned policy.Learned) *flow {
	from, to := d.ends()
	end, _ := d.blamed()
	source := end.addr
	first, last := d.first.Sub(t.epoch), d.last.Sub(t.epoch)
	if src := t.sources[source]; src != nil && d.mayHaveOutside(from, to) && !src.searched.allows(last, maxSearches) {
		t.lost += d.count
		return nil
	}
	exact := keyOf(d, from, to, learned)
	k, addr := exact.class()
	f := t.flows[k]
	if f == nil {
		if !t.makeRoom(source, last) {
			t.lost += d.count
			return nil
		}
		f = &flow{key: k, from: podOf(from), to: podOf(to), addr: addr, first: first, last: last, source: source}
		f.names = namesOf(&exact, to, learned)
		t.flows[k] = f
	} else {
		t.unlink(f)
	}
	f.count += d.count
	f.first, f.last = min(f.first, first), max(f.last, last)
	f.changed = t.next()
	t.link(f)
	return f
}

// ends returns the pods at both ends, nil for none.
func (d *decided) ends() (from, to *policy.Endpoint) {
	return d.snapshot.Endpoint(d.packet.Src.Addr()), d.snapshot.Endpoint(d.packet.Dst.Addr())
}

// mayHaveOutside reports whether the deciding rule may have matched an end by a block or a
// domain, which takes a search.
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

// peer returns the address of the peer: the end whose policies did not decide.
func (k *key) peer() *netip.Addr {
	if k.direction == policy.Ingress {
		return &k.src
	}
	return &k.dst
}

// class returns the key of the flow. Everything that one block or domain allows is one flow,
// so that a pod with clients or servers all over the Internet has few flows; addr is the
// address that the block or domain replaces. Denied packets, also by audited policies, keep
// their address, because operators need to know whom a denial concerns. Record.Several
// repeats this condition.
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

// namesOf returns the domain names that the source has resolved to a destination that is not
// a pod.
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

// makeRoom makes room for a new flow of source: it removes the source's oldest flow if the
// source has used its share, else the oldest of all if the table is full. It reports false if
// source has replaced too many flows.
func (t *table) makeRoom(source netip.Addr, at time.Duration) bool {
	src := t.sources[source]
	switch {
	case src != nil && src.len >= t.share:
		if !src.replaced.allows(at, t.share) {
			return false
		}
		t.evict(src.oldest)
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
	src := t.sources[f.source]
	if src == nil {
		src = &source{order: order{list: sameSource}}
		t.sources[f.source] = src
	}
	t.all.add(f)
	src.add(f)
}

// unlink removes f from both lists. That of its source may become empty.
func (t *table) unlink(f *flow) {
	t.all.remove(f)
	t.sources[f.source].remove(f)
}
