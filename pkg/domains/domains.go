// Package domains learns from the DNS answers that a node's pods receive which
// names each pod knows an address by. It owns what is learned, for whom and for
// how long. It does not know policies, nor how packets come to it, nor which
// resolvers are to be believed: who hands it packets has chosen them.
//
// What an attacker could want is an address of his under somebody else's name.
// Therefore only an answer counts to a query that the pod was seen to send, and
// it teaches addresses for the name in the question alone, whatever other names
// it has records for.
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
	// MinTTL is how long an address is known at least. Clients connect some time
	// after they have asked, and cluster DNS hands out TTLs of a few seconds, or
	// of none.
	MinTTL = time.Minute
	// MaxTTL is how long an address is known at most, whatever its TTL says. It is
	// the bound of resolvers, too (cache-max-ttl of unbound).
	MaxTTL = 24 * time.Hour
)

// Config is what a Table needs.
type Config struct {
	// Now is the clock, time.Now outside of tests.
	Now func() time.Time
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate names every field that cannot work.
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

// Table is what all pods of the node have learned. It is a policy.Learned.
// Observe and Names may be called from any goroutine.
type Table struct {
	now     func() time.Time
	metrics *metrics
	pods    atomic.Pointer[map[netip.Addr]*pod] // the map never changes
}

// pod is one pod with all its addresses: it may ask from one and connect from
// another.
type pod struct {
	owner string
	known *known

	mu      sync.Mutex // guards what was seen of its DNS traffic
	queries queries
	streams streams
}

// New returns a Table that learns nothing until Keep tells for whom.
func New(cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("domains: %w", err)
	}
	t := &Table{now: cfg.Now}
	t.pods.Store(&map[netip.Addr]*pod{})
	t.metrics = newMetrics(cfg.Registerer, t.addresses)
	return t, nil
}

// Keep has names learned for the pods that own these addresses, and forgets what
// all others have learned. Addresses of one owner share what they learn; an
// address that changes hands starts anew. Keep is called from one goroutine.
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

// Names returns the names by which the pod at that address knows addr, nil if
// there are none or all have expired. It is the same pointer while nothing
// changes, and then nothing is allocated.
func (t *Table) Names(pod, addr netip.Addr) *policy.Names {
	p := (*t.pods.Load())[pod]
	if p == nil {
		return nil
	}
	return p.known.find(addr, t.now())
}

// addresses returns how many addresses are known, each counted once for each of
// its names and of the pods that know it.
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

// Observe looks at an IP packet of DNS traffic between a pod and a resolver, of
// either direction. The packet goes on whatever it is; one that is not whole or
// makes no sense teaches nothing.
func (t *Table) Observe(payload []byte) {
	s, ok := packet.ParseSegment(payload)
	if !ok {
		t.metrics.unreadable.Inc()
		return
	}
	pods := *t.pods.Load()
	if p := pods[s.Src.Addr()]; p != nil {
		p.hear(s, func(b []byte) { t.sent(p, s, b) })
	}
	if p := pods[s.Dst.Addr()]; p != nil {
		p.hear(s, func(b []byte) { t.received(p, s, b) })
	}
}

// hear calls message for each DNS message that is whole with s.
func (p *pod) hear(s packet.Segment, message func([]byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Proto == packet.UDP {
		message(s.Payload)
		return
	}
	p.streams.feed(s, message)
}

// sent notes the query in a message that p has sent.
func (t *Table) sent(p *pod, s packet.Segment, b []byte) {
	m, err := parse(b)
	if err != nil || m.Response || !m.asksForAddresses() {
		return
	}
	t.metrics.queries.Inc()
	p.queries.add(m.transaction(s.Src, s.Proto), string(text(&m.question.Name)), t.now())
}

// received learns from the answer in a message that comes to p.
func (t *Table) received(p *pod, s packet.Segment, b []byte) {
	m, err := parse(b)
	switch {
	case err != nil:
		t.metrics.answered(malformed)
	case m.Response: // p may be a resolver itself and receive queries
		t.metrics.answered(p.learn(&m, m.transaction(s.Dst, s.Proto), t.now()))
	}
}

// learn learns what an answer teaches. The query waits on unless the answer is
// one that the pod will be content with: it may have asked several resolvers.
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

// lifetime returns how long an address of that TTL, in seconds, is known.
func lifetime(ttl uint32) time.Duration {
	return min(max(time.Duration(ttl)*time.Second, MinTTL), MaxTTL)
}
