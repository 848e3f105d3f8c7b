// Package domains learns the domain names of addresses from the DNS answers that a
// node's pods receive, for each pod separately. It decides what a pod learns and for
// how long. It does not know policies, nor how packets are intercepted, nor which
// resolvers are trusted: the caller passes only packets of trusted ones.
//
// An attacker may try to bind its address to a trusted name. Therefore an answer
// counts only if the pod has sent the query, and it binds addresses only to the name
// in the question, whatever other names it has records for.
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

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const (
	// MinTTL is the shortest time for which an address is known. Clients connect
	// some time after their query, and cluster DNS sends TTLs of a few seconds or
	// zero.
	MinTTL = time.Minute
	// MaxTTL is the longest time for which an address is known, whatever its TTL.
	// Resolvers have the same bound (cache-max-ttl of unbound).
	MaxTTL = 24 * time.Hour
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
	pods    atomic.Pointer[map[netip.Addr]*pod] // the map never changes
}

// pod is one pod with all its addresses: it may send queries from one and connect
// from another.
type pod struct {
	owner string
	known *known

	mu      sync.Mutex // guards the state of its DNS traffic
	queries queries
	streams streams
}

// New returns a Table that learns nothing before Keep is called.
func New(cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("domains: %w", err)
	}
	t := &Table{now: cfg.Now}
	t.pods.Store(&map[netip.Addr]*pod{})
	t.metrics = newMetrics(cfg.Registerer, t.addresses)
	return t, nil
}

// Keep sets the pods that learn names, by the addresses that they own, and forgets
// what all other pods have learned. Addresses of one owner share what they learn; an
// address that gets another owner starts empty. Keep is called from one goroutine.
func (t *Table) Keep(owners map[netip.Addr]string) {
	pods := make(map[string]*pod)
	for _, p := range *t.pods.Load() {
		pods[p.owner] = p
	}
	kept := make(map[netip.Addr]*pod, len(owners))
	for addr, owner := range owners {
		if pods[owner] == nil {
			pods[owner] = t.newPod(owner)
		}
		kept[addr] = pods[owner]
	}
	t.pods.Store(&kept)
}

func (t *Table) newPod(owner string) *pod {
	return &pod{
		owner:   owner,
		known:   newKnown(t.metrics.evicted("address").Inc),
		queries: newQueries(t.metrics.evicted("query").Inc),
		streams: newStreams(t.metrics.evicted("stream").Inc),
	}
}

// Names returns the names of addr that the pod at that address has learned, nil if
// there are none or all have expired. It returns the same pointer as long as the
// names do not change, and does not allocate then.
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
	n, counted := 0, make(map[*pod]bool)
	for _, p := range *t.pods.Load() {
		if !counted[p] {
			counted[p] = true
			n += p.known.count()
		}
	}
	return n
}

// Observe reads an IP packet of DNS traffic between a pod and a resolver, in either
// direction. Nothing is learned from a packet that is truncated or malformed.
func (t *Table) Observe(payload []byte) {
	s, ok := packet.ParseSegment(payload)
	if !ok {
		t.metrics.unreadable.Inc()
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

// read calls message for each DNS message that is complete with s.
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
	p.queries.add(m.transaction(s.Src, s.Proto), string(text(&m.question.Name)), t.now())
}

// received learns from the answer in a message to p.
func (t *Table) received(p *pod, s packet.Segment, b []byte) {
	m, err := parse(b)
	switch {
	case err != nil:
		t.metrics.answered(malformed)
	case m.Response: // p may be a resolver itself and receive queries
		t.metrics.answered(p.learn(&m, m.transaction(s.Dst, s.Proto), t.now()))
	}
}

// learn learns from an answer. The query stays pending unless the answer is one that
// ends the pod's lookup: the pod may have sent it to several resolvers.
func (p *pod) learn(m *message, t transaction, now time.Time) result {
	if !m.asksForAddresses() {
		return other
	}
	name, ok := p.queries.find(t, text(&m.question.Name), now)
	switch {
	case !ok:
		return unsolicited
	case m.Truncated:
		return truncated
	case m.RCode != dnsmessage.RCodeSuccess:
		return negative
	}
	owner, chain, err := m.follow()
	if err != nil {
		return malformed
	}
	p.queries.remove(t)
	found := empty
	for addr, ttl := range m.addresses(&owner) {
		p.known.learn(name, addr, now, now.Add(lifetime(min(chain, ttl))))
		found = learned
	}
	return found
}

// lifetime returns how long an address with that TTL, in seconds, is known.
func lifetime(ttl uint32) time.Duration {
	return min(max(time.Duration(ttl)*time.Second, MinTTL), MaxTTL)
}
