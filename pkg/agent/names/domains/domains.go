// Package domains learns the domain names of addresses from the DNS answers that a node's
// pods receive, for each pod separately. It decides what a pod learns and for how long. It
// does not know policies, how packets are intercepted, or which resolvers are trusted: the
// caller passes only packets of trusted resolvers.
//
// An attacker may try to bind its address to a trusted name. Therefore an answer counts only
// if the pod sent the query, and it binds addresses only to the name in the question, even if
// it has records for other names.
package domains

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// MaxTTL is the greatest TTL that counts. Resolvers have the same bound
	// (cache-max-ttl of unbound).
	MaxTTL = 24 * time.Hour
	// Grace is how long an address is known after its TTL. Clients connect some time
	// after their query, caches round TTLs up, and cluster DNS sends TTLs of a few
	// seconds or zero.
	Grace = time.Minute
)

// Config configures a Table.
type Config struct {
	// Now is the clock, time.Now outside of tests.
	Now func() time.Time
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Now == nil {
		errs = append(errs, errors.New("Now is nil"))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Table holds what all pods of the node have learned. It is a policy.Learned.
// Observe and Names may be called from any goroutine.
type Table struct {
	now     func() time.Time
	metrics *metrics
	pods    atomic.Pointer[map[netip.Addr]*pod] // the map is replaced, never modified
	changed chan struct{}                       // signals that the file should be written

	mu     sync.Mutex      // held while pods is replaced
	absent map[string]*pod // by owner: pods of the file that are not in pods
}

// pod is one pod with all its addresses: it may send queries from one and connect
// from another.
type pod struct {
	owner string
	known *known

	mu      sync.Mutex // guards the state of its DNS traffic
	queries queries
	streams streams
	history history
}

// New returns a Table that learns nothing before Keep is called.
func New(cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("domains: %w", err)
	}
	t := &Table{now: cfg.Now, changed: make(chan struct{}, 1)}
	t.pods.Store(&map[netip.Addr]*pod{})
	t.metrics = newMetrics(cfg.Registerer, t.addresses)
	return t, nil
}

// Keep sets the pods that learn names, as owners by address, and forgets what all other pods
// have learned. Addresses of one owner share what they learn; an address that gets another
// owner starts empty, or with what the file has of this owner.
func (t *Table) Keep(owners map[netip.Addr]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pods := t.byOwner()
	kept := make(map[netip.Addr]*pod, len(owners))
	for addr, owner := range owners {
		if pods[owner] == nil {
			pods[owner] = t.absent[owner]
			delete(t.absent, owner)
		}
		if pods[owner] == nil {
			pods[owner] = t.newPod(owner)
		}
		kept[addr] = pods[owner]
	}
	t.pods.Store(&kept)
}

// byOwner returns the pods that learn names.
func (t *Table) byOwner() map[string]*pod {
	pods := make(map[string]*pod)
	for _, p := range *t.pods.Load() {
		pods[p.owner] = p
	}
	return pods
}

func (t *Table) newPod(owner string) *pod {
	return &pod{
		owner:   owner,
		known:   newKnown(t.metrics.evicted("address").Inc),
		queries: newQueries(t.metrics.evicted("query").Inc),
		streams: newStreams(t.metrics.evicted("stream").Inc),
		history: newHistory(t.now()),
	}
}

// Names returns the names of addr that the pod at that address has learned, nil if there are
// none or all have expired. While the names do not change it returns the same pointer and
// does not allocate.
func (t *Table) Names(pod, addr netip.Addr) *policy.Names {
	p := (*t.pods.Load())[pod]
	if p == nil {
		return nil
	}
	return p.known.find(addr, t.now())
}

// addresses returns the number of known addresses, each counted once for each of
// its names and each pod that knows it.
func (t *Table) addresses() int {
	n := 0
	for _, p := range t.byOwner() {
		n += p.known.count()
	}
	return n
}

// Observe reads an IP packet of DNS traffic between a pod and a resolver, in either
// direction. Nothing is learned from a packet that is truncated or malformed.
func (t *Table) Observe(payload []byte) {
	s, ok := packet.ParseSegment(payload)
	if !ok {
		t.metrics.answered(unreadable)
		return
	}
	pods := *t.pods.Load()
	if p := pods[s.Src.Addr()]; p != nil {
		p.read(s, func(b []byte) { t.sent(p, s, b) })
	}
	if p := pods[s.Dst.Addr()]; p != nil {
		p.read(s, func(b []byte) { t.received(p, s, b) })
	}
}

// read calls message for each DNS message that s completes.
func (p *pod) read(s packet.Segment, message func([]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Proto == packet.UDP {
		message(s.Payload)
		return
	}
	p.streams.feed(s, message)
}

// sent records the query in a message that p has sent.
func (t *Table) sent(p *pod, s packet.Segment, b []byte) {
	m, err := parse(b)
	if err != nil || m.Response || !m.asksForAddresses() {
		return
	}
	t.metrics.queries.Inc()
	name, now := string(text(&m.question.Name)), t.now()
	p.queries.add(m.transaction(s.Src, s.Proto), name, now)
	p.history.asked(name, now)
}

// received learns from the answer in a message to p.
func (t *Table) received(p *pod, s packet.Segment, b []byte) {
	m, err := parse(b)
	switch {
	case err != nil:
		t.metrics.answered(malformed)
	case m.Response: // p may be a resolver itself and receive queries
		r, unsaved := p.learn(&m, m.transaction(s.Dst, s.Proto), t.now())
		t.metrics.answered(r)
		if unsaved {
			t.signal()
		}
	}
}

// signal signals that the file should be written.
func (t *Table) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// learn learns from an answer. The query stays pending unless the answer ends the pod's
// lookup, because the pod may have asked several resolvers. unsaved reports whether the file
// should be written.
func (p *pod) learn(m *message, t transaction, now time.Time) (r result, unsaved bool) {
	if !m.asksForAddresses() {
		return other, false
	}
	name, ok := p.queries.find(t, text(&m.question.Name), now)
	switch {
	case !ok:
		return unsolicited, false
	case m.Truncated:
		return truncated, false
	case m.RCode != dnsmessage.RCodeSuccess:
		p.history.answered(name, negative)
		return negative, false
	}
	owner, chain, err := m.follow()
	if err != nil {
		return malformed, false
	}
	p.queries.remove(t)
	r = empty
	for addr, ttl := range m.addresses(&owner) {
		unsaved = p.known.learn(name, addr, now, now.Add(lifetime(min(chain, ttl)))) || unsaved
		r = learned
	}
	p.history.answered(name, r)
	return r, unsaved
}

// lifetime returns how long an address with this TTL, in seconds, is known.
func lifetime(ttl uint32) time.Duration {
	return min(time.Duration(ttl)*time.Second, MaxTTL) + Grace
}
