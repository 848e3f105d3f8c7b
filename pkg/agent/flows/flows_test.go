package flows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

var (
	web     = netip.MustParseAddr("10.0.0.1")
	db      = netip.MustParseAddr("10.0.0.2")
	other   = netip.MustParseAddr("10.0.0.3")
	outside = netip.MustParseAddr("192.0.2.1")

	allowed = policy.Decision{Action: policy.Allow, Direction: policy.Ingress, Tier: policy.NetworkPolicyTier, Reason: policy.RuleMatched, Policy: &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: "db", Generation: 1}, Rule: 2}
	denied  = policy.Decision{Direction: policy.Ingress, Tier: policy.NetworkPolicyTier, Reason: policy.Isolated, Policy: &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: "db", Generation: 1}}
)

// clusterOf returns the snapshot of a cluster with web and db in namespace shop, where db is
// the pod of this ID.
func clusterOf(id uint32) *policy.Snapshot {
	return policy.New(policy.Model{Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		web:   {Namespace: "shop", Name: "web", ID: 1},
		db:    {Namespace: "shop", Name: fmt.Sprintf("db-%d", id), ID: id},
		other: {Namespace: "other", Name: "other", ID: 3},
	})})
}

// crawls is the snapshot of a cluster where web may connect to a block and to a domain, and
// not to another block.
func crawls() *policy.Snapshot {
	rule := func(action policy.Action, index int, peer policy.Peer) policy.Rule {
		return policy.Rule{Action: action, Tier: policy.AdminTier, Policy: &policy.Ref{Kind: "ClusterNetworkPolicy", Name: "crawl"}, Index: index, Peers: []policy.Peer{peer}, AnyPort: true}
	}
	block := func(cidr string) policy.Peer {
		return policy.Peer{Blocks: []policy.Block{{Prefix: netip.MustParsePrefix(cidr)}}}
	}
	chain := &policy.Chain{Rules: []policy.Rule{
		rule(policy.Deny, 0, block("198.51.100.0/24")),
		rule(policy.Allow, 1, policy.Peer{Domains: []policy.Domain{{Name: "example.com"}}}),
		rule(policy.Allow, 2, block("192.0.2.0/24")),
	}}
	return policy.New(policy.Model{Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		web:   {Namespace: "shop", Name: "web", ID: 1, Egress: chain, Ingress: chain},
		other: {Namespace: "shop", Name: "other", ID: 2, Egress: chain},
	})})
}

// decide records a decision of s at a time, and that of audited policies if it differs.
func (r *Recorder) decide(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, would *policy.Decision, at time.Time) {
	r.Tap(eventOf(p, d, s, would, at))
}

func eventOf(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, would *policy.Decision, at time.Time) *event.Event {
	ev := &event.Event{Query: policy.Query{Packet: *p}, Decision: *d, Snapshot: s, At: at, Count: 1}
	if would != nil {
		ev.Audit, ev.Would = event.AuditDiffers, *would
	}
	return ev
}

// byKernel records packets that the kernel decided.
func (r *Recorder) byKernel(c packet.Class, d policy.Decision, s *policy.Snapshot, packets uint64) {
	r.Tap(&event.Event{Query: policy.Query{Packet: c.Packet()}, Decision: d, Snapshot: s, At: time.Now(), ByKernel: true, Count: packets})
}

// decideBy records the decision of a snapshot.
func decideBy(r *Recorder, s *policy.Snapshot, p *packet.Packet, would *policy.Decision) {
	d := s.Evaluate(policy.Query{Packet: *p, Learned: r.cfg.Learned})
	r.decide(p, &d, s, would, r.epoch)
	r.drain()
}

func tcp(from, to netip.Addr, port uint16) *packet.Packet {
	return &packet.Packet{Src: netip.AddrPortFrom(from, 40000), Dst: netip.AddrPortFrom(to, port), Proto: packet.TCP}
}

// names has one domain name of one address.
type names struct {
	addr netip.Addr
	name string
}

func (n names) Names(_, addr netip.Addr) *policy.Names {
	if addr != n.addr {
		return nil
	}
	return &policy.Names{n.name}
}

// newRecorder returns a recorder of which the test sets the clocks.
func newRecorder() (r *Recorder, wall *time.Time, since *time.Duration) {
	r = New(Config{Node: "node-1", Learned: names{outside, "example.com"}, Registerer: prometheus.NewRegistry()})
	wall, since = new(time.Time), new(time.Duration)
	*wall = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.wall = func() time.Time { return *wall }
	r.since = func() time.Duration { return *since }
	return r, wall, since
}

// decide records a decision at a time since the start.
func decide(r *Recorder, p *packet.Packet, d policy.Decision, s *policy.Snapshot, at time.Duration) {
	r.decide(p, &d, s, nil, r.epoch.Add(at))
}

// lines returns records as text, without times.
func lines(records []Record) (all []string) {
	end := func(e *End) string {
		text := e.Address.String()
		if e.Pod != "" {
			text = e.Namespace + "/" + e.Pod
		}
		if e.Port > 0 {
			text += fmt.Sprintf(":%d", e.Port)
		}
		for _, more := range []string{e.Block, e.Domain} {
			if more != "" {
				text += " of " + more
			}
		}
		return strings.Join(append([]string{text}, e.Names...), " ")
	}
	for _, r := range records {
		if r.Type == TypeAgent {
			continue
		}
		line := fmt.Sprintf("%s %s -> %s %s %d %s %s %s %s", r.Type, end(r.Source), end(r.Destination), r.Protocol, r.Port, r.Verdict, r.Direction, r.Tier, r.Reason)
		if r.Policy != nil {
			line += " " + r.Policy.Kind + " " + r.Policy.Namespace + "/" + r.Policy.Name
		}
		if r.Rule != nil {
			line += fmt.Sprintf(" rule %d", *r.Rule)
		}
		if r.Type == TypeFlow {
			line += fmt.Sprintf(" x%d", r.Count)
		}
		if r.Audit != nil {
			line += " audit " + r.Audit.Verdict + " " + r.Audit.Reason + " " + r.Audit.Policy.Kind + " " + r.Audit.Policy.Namespace + "/" + r.Audit.Policy.Name
		}
		all = append(all, line)
	}
	return all
}

func TestDecisionsThatAreAlikeAreOneFlow(t *testing.T) {
	s, later := clusterOf(2), clusterOf(4)
	changed := allowed
	changed.Policy = &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: "db", Generation: 2}
	rule := allowed
	rule.Rule = 1
	port := tcp(web, db, 5432)
	port.Src = netip.AddrPortFrom(web, 40001)
	ping := &packet.Packet{Src: netip.AddrPortFrom(web, 0), Dst: netip.AddrPortFrom(db, 0), Proto: packet.ICMP}
	open := policy.Decision{Action: policy.Allow, Direction: policy.Egress, Reason: policy.Unmatched}
	const byRule = " allow ingress networkpolicy rule matched NetworkPolicy shop/db rule 2 x"
	for _, tc := range []struct {
		name   string
		decide func(*Recorder)
		want   []string
	}{
		{"the same", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			decide(r, tcp(web, db, 5432), allowed, s, 0)
		}, []string{"flow shop/web -> shop/db-2 TCP 5432" + byRule + "2"}},
		{"another port of the source", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			decide(r, port, allowed, s, 0)
		}, []string{"flow shop/web -> shop/db-2 TCP 5432" + byRule + "2"}},
		{"another generation of the policy, by another snapshot", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			decide(r, tcp(web, db, 5432), changed, clusterOf(2), 0)
		}, []string{"flow shop/web -> shop/db-2 TCP 5432" + byRule + "2"}},
		{"another port", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			r.drain()
			decide(r, tcp(web, db, 80), allowed, s, 0)
		}, []string{"flow shop/web -> shop/db-2 TCP 80" + byRule + "1", "flow shop/web -> shop/db-2 TCP 5432" + byRule + "1"}},
		{"another rule", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			r.drain()
			decide(r, tcp(web, db, 5432), rule, s, 0)
		}, []string{"flow shop/web -> shop/db-2 TCP 5432 allow ingress networkpolicy rule matched NetworkPolicy shop/db rule 1 x1", "flow shop/web -> shop/db-2 TCP 5432" + byRule + "1"}},
		{"another pod at the address", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			r.drain()
			decide(r, tcp(web, db, 5432), allowed, later, 0)
		}, []string{"flow shop/web -> shop/db-4 TCP 5432" + byRule + "1", "flow shop/web -> shop/db-2 TCP 5432" + byRule + "1"}},
		{"a protocol without ports", func(r *Recorder) { decide(r, ping, allowed, s, 0) },
			[]string{"flow shop/web -> shop/db-2 ICMP 0" + byRule + "1"}},
		{"an address with a name", func(r *Recorder) { decide(r, tcp(web, outside, 443), open, s, 0) },
			[]string{"flow shop/web -> 192.0.2.1 example.com TCP 443 allow egress default unmatched x1"}},
		{"from outside", func(r *Recorder) { decide(r, tcp(outside, db, 80), denied, s, 0) }, []string{
			"flow 192.0.2.1 -> shop/db-2 TCP 80 deny ingress networkpolicy isolated NetworkPolicy shop/db x1",
			"denial 192.0.2.1:40000 -> shop/db-2 TCP 80 deny ingress networkpolicy isolated NetworkPolicy shop/db",
		}},
		{"audited policies would deny it", func(r *Recorder) {
			for _, would := range []*policy.Decision{nil, &denied, nil, &denied, &denied} {
				d := allowed
				r.decide(tcp(web, db, 5432), &d, s, would, r.epoch)
				r.drain()
			}
		}, []string{
			"flow shop/web -> shop/db-2 TCP 5432" + byRule + "3 audit deny isolated NetworkPolicy shop/db",
			"flow shop/web -> shop/db-2 TCP 5432" + byRule + "2",
		}},
		{"remembered by the kernel", func(r *Recorder) {
			decide(r, tcp(web, db, 5432), allowed, s, 0)
			r.drain()
			r.byKernel(packet.Class{Src: web, Dst: db, Proto: packet.TCP, Port: 5432}, allowed, s, 40)
		}, []string{"flow shop/web -> shop/db-2 TCP 5432" + byRule + "41"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _, _ := newRecorder()
			tc.decide(r)
			if diff := cmp.Diff(tc.want, lines(r.Read(Filter{}))); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// Connections that a block or a domain allows are one flow, with its first address. Denied
// ones, also by audited policies, are one flow per address.
func TestAddressesOfABlockAreOneFlow(t *testing.T) {
	r, _, _ := newRecorder()
	s, next := crawls(), outside.Next()
	for _, to := range []netip.Addr{outside, next.Next(), next, next.Next()} {
		decideBy(r, s, tcp(web, to, 443), nil)
		decideBy(r, s, tcp(to, web, 80), nil)
	}
	r.byKernel(packet.Class{Src: web, Dst: next.Next().Next(), Proto: packet.TCP, Port: 443}, s.Evaluate(policy.Query{Packet: *tcp(web, next, 443)}), s, 10)
	decideBy(r, s, tcp(web, next, 443), &denied)
	bad := netip.MustParseAddr("198.51.100.1")
	decideBy(r, s, tcp(web, bad, 443), nil)
	decideBy(r, s, tcp(web, bad.Next(), 443), nil)
	const by, rule = " admin rule matched ClusterNetworkPolicy /crawl rule ", "198.51.100.0/24 TCP 443 deny egress admin rule matched ClusterNetworkPolicy /crawl rule 0"
	want := []string{
		"flow shop/web -> 198.51.100.2 of " + rule + " x1",
		"flow shop/web -> 198.51.100.1 of " + rule + " x1",
		"flow shop/web -> 192.0.2.2 of 192.0.2.0/24 TCP 443 allow egress" + by + "2 x1 audit deny isolated NetworkPolicy shop/db",
		"flow shop/web -> 192.0.2.3 of 192.0.2.0/24 TCP 443 allow egress" + by + "2 x13",
		"flow 192.0.2.1 of 192.0.2.0/24 -> shop/web TCP 80 allow ingress" + by + "2 x4",
		"flow shop/web -> 192.0.2.1 of example.com example.com TCP 443 allow egress" + by + "1 x1",
		"denial shop/web:40000 -> 198.51.100.1 of " + rule,
		"denial shop/web:40000 -> 198.51.100.2 of " + rule,
	}
	if diff := cmp.Diff(want, lines(r.Read(Filter{}))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for _, rec := range r.Read(Filter{})[1:] {
		several := rec.Type == TypeFlow && rec.Verdict == Allow && rec.Audit == nil
		if got := rec.Several(rec.Source) + rec.Several(rec.Destination); (got != "") != several {
			t.Errorf("%s %v stands for several addresses of %q", rec.Type, rec.Destination, got)
		}
	}
}

// The buffer keeps packets that audited policies would deny apart from others.
func TestDecisionsOfAnAuditAreApart(t *testing.T) {
	b, s := newBuffer(1), clusterOf(2)
	for _, would := range []*policy.Decision{&denied, nil, &denied, nil, nil} {
		b.add(eventOf(tcp(web, db, 80), &allowed, s, would, time.Time{}))
	}
	got := map[bool]uint64{}
	b.drain(func(d *decided) { got[d.audited] += d.count })
	if diff := cmp.Diff(map[bool]uint64{true: 2, false: 3}, got); diff != "" {
		t.Errorf("decisions, by whether audited policies would deny them (-want +got):\n%s", diff)
	}
}

// made returns how many decisions the records count.
func made(records []Record) (n uint64) {
	for _, r := range records {
		if r.Type == TypeFlow {
			n += r.Count
		}
	}
	return n
}

// Each decision is counted in a flow or as lost, with many goroutines that decide and read.
func TestEveryDecisionIsCountedOrLost(t *testing.T) {
	const workers, each = 4, 20000
	for _, ports := range []uint32{1, 100, 60000} {
		t.Run(fmt.Sprintf("%d ports", ports), func(t *testing.T) {
			r := New(Config{Node: "node-1", Registerer: prometheus.NewRegistry()})
			r.table = newTable(r.epoch, workers*each, workers*each) // nothing is evicted
			ctx, cancel := context.WithCancel(t.Context())
			var running, deciding sync.WaitGroup
			running.Go(func() { _ = r.Run(ctx) })
			s := clusterOf(2)
			for w := range workers {
				deciding.Go(func() {
					random := rand.New(rand.NewPCG(uint64(w), 1))
					for i := range each {
						d := allowed
						if random.Uint32()%4 == 0 {
							d = denied
						}
						r.decide(tcp(web, db, uint16(random.Uint32()%ports)), &d, s, nil, time.Now())
						if i%5000 == 0 {
							r.Read(Filter{})
						}
					}
				})
			}
			deciding.Wait()
			cancel()
			running.Wait()
			records := r.Read(Filter{})
			summary := records[0].Summary
			if got := made(records) + summary.Lost; got != workers*each {
				t.Errorf("%d decisions are in flows and %d are lost: %d are missing", made(records), summary.Lost, workers*each-got)
			}
			denials := uint64(0)
			for _, rec := range records {
				if rec.Type == TypeFlow && rec.Verdict == Deny {
					denials += rec.Count
				}
			}
			if got := summary.Withheld + uint64(len(r.denials.latest)); got != denials {
				t.Errorf("%d denied packets are records or withheld, of %d in flows", got, denials)
			}
		})
	}
}

// If nothing drains the buffer, it fills, and further decisions are counted as lost.
func TestAFullBufferLosesAndCounts(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	const decisions = 3 * shards * bufferLen
	r.table = newTable(r.epoch, decisions, decisions) // nothing is evicted
	for port := range uint16(decisions) {
		decide(r, tcp(web, db, port), allowed, s, 0)
	}
	records := r.Read(Filter{})
	lost := records[0].Lost
	if made(records)+lost != decisions || lost < decisions-shards*bufferLen {
		t.Errorf("%d in flows, %d lost, of %d", made(records), lost, decisions)
	}
	decide(r, tcp(web, db, 1), allowed, s, 0)
	if again := r.Read(Filter{}); again[0].Lost != lost {
		t.Errorf("%d lost after the buffer was drained, want %d", again[0].Lost, lost)
	}
}

// A drained buffer keeps no snapshot, which would keep the state of the cluster in memory.
func TestTheBufferKeepsNoSnapshot(t *testing.T) {
	b := newBuffer(1)
	s := clusterOf(2)
	for port := range uint16(2000) {
		b.add(eventOf(tcp(web, db, port), &denied, s, nil, time.Time{}))
	}
	b.drain(func(*decided) {})
	for i := range b.shards {
		for _, e := range []*entries{b.shards[i].current, b.shards[i].spare} {
			if e.n != 0 || e.index != [slots]uint8{} || e.all != [bufferLen]decided{} {
				t.Fatalf("shard %d is not empty", i)
			}
		}
	}
}

func TestDecidedDoesNotAllocate(t *testing.T) {
	r, _, _ := newRecorder()
	s, at, port := clusterOf(2), time.Now(), uint16(0)
	p := tcp(web, db, 1)
	if n := testing.AllocsPerRun(10000, func() {
		port++
		p.Dst = netip.AddrPortFrom(db, port)
		r.decide(p, &denied, s, nil, at)
	}); n != 0 {
		t.Errorf("%v allocations for a decision", n)
	}
}

// model is a table that searches everything.
type model struct {
	room, share int
	flows       []modelFlow // that was seen last is last
	evicted     uint64
}

type modelFlow struct {
	source netip.Addr
	port   uint16
	count  uint64
}

func (m *model) add(source netip.Addr, port uint16) {
	f := modelFlow{source: source, port: port}
	own, oldest := 0, -1
	for i, known := range m.flows {
		if known.source == source && known.port == port {
			f = known
			m.flows = append(m.flows[:i:i], m.flows[i+1:]...)
			f.count++
			m.flows = append(m.flows, f)
			return
		}
		if known.source == source {
			own++
			if oldest < 0 {
				oldest = i
			}
		}
	}
	if own < m.share {
		oldest = 0
	}
	if own >= m.share || len(m.flows) >= m.room {
		m.flows = append(m.flows[:oldest:oldest], m.flows[oldest+1:]...)
		m.evicted++
	}
	f.count++
	m.flows = append(m.flows, f)
}

func TestTheLeastRecentlySeenGoFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := clusterOf(2)
	table, want := newTable(time.Time{}, 20, 8), &model{room: 20, share: 8}
	for i := range 5000 {
		from := []netip.Addr{web, db, other, outside}[random.IntN(4)]
		port := uint16(random.IntN(12))
		p := tcp(from, db, port)
		if from == outside {
			p = tcp(outside, other, port) // counts for its destination
			from = other
			port += 100
		}
		p.Dst = netip.AddrPortFrom(p.Dst.Addr(), port)
		at := time.Time{}.Add(time.Duration(i) * replaceInterval) // replaces as many as it likes
		table.add(&decided{packet: *p, decision: allowed, snapshot: s, first: at, last: at, count: 1}, nil)
		want.add(from, port)
		var got []modelFlow
		for f := table.all.oldest; f != nil; f = f.links[allFlows].newer {
			got = append(got, modelFlow{f.source, f.port, f.count})
		}
		if diff := cmp.Diff(want.flows, got, cmp.AllowUnexported(modelFlow{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" || table.evicted != want.evicted || len(table.flows) != len(got) {
			t.Fatalf("flows (-want +got), evicted %d, want %d:\n%s", table.evicted, want.evicted, diff)
		}
		sum := 0
		for _, of := range table.sources {
			sum += of.len
			if of.len == 0 {
				t.Fatal("a source without flows is kept")
			}
		}
		if sum != len(got) {
			t.Fatalf("sources have %d flows of %d", sum, len(got))
		}
	}
}

// A source replaces its share of flows once per interval. Further flows are lost, but
// recorded ones are still counted.
func TestASourceReplacesItsShareInAnInterval(t *testing.T) {
	s := clusterOf(2)
	table := newTable(time.Time{}, 100, 10)
	port := uint16(0)
	send := func(from netip.Addr, flows int, at time.Duration) {
		for range flows {
			port++
			when := time.Time{}.Add(at)
			table.add(&decided{packet: *tcp(from, db, port), decision: allowed, snapshot: s, first: when, last: when, count: 2}, nil)
		}
	}
	for _, step := range []struct {
		name          string
		from          netip.Addr
		flows         int
		at            time.Duration
		evicted, lost uint64
	}{
		{"its share", web, 10, 0, 0, 0},
		{"its share again", web, 10, 0, 10, 0},
		{"and three more", web, 3, replaceInterval - 1, 10, 6},
		{"another source", other, 12, replaceInterval - 1, 12, 6},
		{"after the interval", web, 4, replaceInterval, 16, 6},
	} { // each after the one before
		send(step.from, step.flows, step.at)
		if table.evicted != step.evicted || table.lost != step.lost {
			t.Errorf("%s: %d evicted and %d lost, want %d and %d", step.name, table.evicted, table.lost, step.evicted, step.lost)
		}
	}
	port--
	send(web, 1, 0)
	if f := table.all.newest; f.count != 4 || table.lost != 6 {
		t.Errorf("a known flow was counted %d times, %d lost, want 4 and 6", f.count, table.lost)
	}
}

// A source that floods addresses of a block causes a bounded number of rule searches per
// interval. Its further decisions are lost; those of other sources are not.
func TestASourceSearchesRulesInAnInterval(t *testing.T) {
	s := crawls()
	table := newTable(time.Time{}, 100, 10)
	send := func(from, to netip.Addr, decisions int, at time.Duration) {
		p, when := tcp(from, to, 443), time.Time{}.Add(at)
		for range decisions {
			table.add(&decided{packet: *p, decision: s.Evaluate(policy.Query{Packet: *p}), snapshot: s, first: when, last: when, count: 1}, nil)
		}
	}
	for _, step := range []struct {
		name          string
		from, to      netip.Addr
		decisions     int
		at            time.Duration
		counted, lost uint64 // in the newest flow, and in all
	}{
		{"what it may", web, outside.Next(), maxSearches + 1, 0, maxSearches + 1, 0}, // the first one makes the source
		{"and more", web, outside.Next(), 1000, replaceInterval - 1, maxSearches + 1, 1000},
		{"that no rule matches", web, db, 3, replaceInterval - 1, 3, 1000},
		{"another source", other, outside.Next(), 4, replaceInterval - 1, 4, 1000},
		{"after the interval", web, outside.Next(), 5, replaceInterval, maxSearches + 6, 1000},
	} { // each after the one before
		send(step.from, step.to, step.decisions, step.at)
		if got := table.all.newest.count; step.counted != got || table.lost != step.lost {
			t.Errorf("%s: %d counted and %d lost, want %d and %d", step.name, got, table.lost, step.counted, step.lost)
		}
	}
}

// A pod with any number of flows displaces only its own, and memory is bounded.
func TestAHostilePodHidesNoOtherFlow(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	decide(r, tcp(web, db, 5432), allowed, s, 0)
	decide(r, tcp(other, db, 1), denied, s, 0)
	random := rand.New(rand.NewPCG(3, 4))
	const classes = 100000
	for i := range classes {
		to := netip.AddrFrom4([4]byte{172, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())})
		decide(r, tcp(other, to, uint16(random.Uint32())), denied, s, time.Duration(i)*time.Millisecond)
		if i%500 == 0 {
			r.drain()
		}
	}
	decide(r, tcp(web, outside, 81), denied, s, classes*time.Millisecond)
	records := r.Read(Filter{Namespace: "shop", Pod: "web"})
	want := []string{
		"flow shop/web -> 192.0.2.1 example.com TCP 81 deny ingress networkpolicy isolated NetworkPolicy shop/db x1",
		"flow shop/web -> shop/db-2 TCP 5432 allow ingress networkpolicy rule matched NetworkPolicy shop/db rule 2 x1",
		"denial shop/web:40000 -> 192.0.2.1 TCP 81 deny ingress networkpolicy isolated NetworkPolicy shop/db",
	}
	if diff := cmp.Diff(want, lines(records)); diff != "" {
		t.Errorf("records of the other pod (-want +got):\n%s", diff)
	}
	summary := records[0].Summary
	if summary.Flows != maxFlows/sharePerSource+2 || len(r.denials.latest) > maxDenials {
		t.Errorf("%d flows and %d denials", summary.Flows, len(r.denials.latest))
	}
	if got := summary.Evicted + summary.Lost + uint64(summary.Flows); got < classes-1000 || got > classes+3 {
		t.Errorf("%d evicted, %d lost and %d recorded, of %d", summary.Evicted, summary.Lost, summary.Flows, classes+3)
	}
}

// The memory of a recorder that is full, with pods and policies of names of its own.
func TestMemoryHasABound(t *testing.T) {
	const most = 8 << 20
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	s := clusterOf(2)
	before := heap()
	r, _, _ := newRecorder()
	for i := range 4 * maxFlows {
		from := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		d, would := allowed, denied
		d.Policy = &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: fmt.Sprint("policy-", i)}
		would.Policy = d.Policy
		r.decide(tcp(outside, from, uint16(i)), &d, s, &would, r.epoch)
		if i%1000 == 0 {
			r.drain()
		}
	}
	r.drain()
	for _, f := range r.table.flows {
		f.why = strings.Repeat("?", 250)
	}
	if got := heap() - before; got > most || len(r.table.flows) != maxFlows {
		t.Errorf("%d flows take %d bytes, more than %d", len(r.table.flows), got, most)
	} else {
		t.Logf("%d flows take %d bytes", len(r.table.flows), got)
	}
	runtime.KeepAlive(r)
}

func TestDenialsOfOneSourceAreFew(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	for i := range 100 { // in five seconds
		decide(r, tcp(web, db, uint16(i)), denied, s, time.Duration(i)*50*time.Millisecond)
		r.drain()
	}
	decide(r, tcp(other, db, 1), denied, s, 5*time.Second)
	count := func() map[string]int {
		n := map[string]int{}
		for _, rec := range r.Read(Filter{}) {
			if rec.Type == TypeDenial {
				n[rec.Source.Pod]++
			}
		}
		return n
	}
	if diff := cmp.Diff(map[string]int{"web": denialsPerSource, "other": 1}, count()); diff != "" {
		t.Errorf("denials (-want +got):\n%s", diff)
	}
	decide(r, tcp(web, db, 1), denied, s, denialInterval)
	if diff := cmp.Diff(map[string]int{"web": denialsPerSource + 1, "other": 1}, count()); diff != "" {
		t.Errorf("denials after the interval (-want +got):\n%s", diff)
	}
	for i := range 2 * denialSources { // more sources than are distinguished, and records
		from := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		d := &decided{packet: *tcp(outside, from, 1), decision: denied, snapshot: s, count: 1, first: r.epoch.Add(denialInterval)}
		r.denied.admits(d)
		r.denials.put(denial{key: keyOf(d, nil, nil, nil), changed: r.table.next()})
	}
	if len(r.denied.sources) != denialSources+1 || len(r.denials.latest) != maxDenials {
		t.Errorf("%d sources, %d denials", len(r.denied.sources), len(r.denials.latest))
	}
	if got := r.denials.ordered(0); got[len(got)-1].changed <= got[0].changed || len(got) != maxDenials {
		t.Errorf("denials are not the latest in order")
	}
}

// Setting the clock while flows are recorded leads to no times in the future and keeps the
// order.
func TestAClockThatJumps(t *testing.T) {
	for _, jump := range []time.Duration{0, time.Hour, -time.Hour, -100000 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			r, wall, since := newRecorder()
			s := clusterOf(2)
			decide(r, tcp(web, db, 1), denied, s, 0)
			r.drain()
			*wall = wall.Add(jump)
			decide(r, tcp(web, db, 1), denied, s, 20*time.Second)
			*since = 30 * time.Second
			records := r.Read(Filter{})
			if !records[0].Time.Equal(*wall) {
				t.Errorf("the agent says that it is %v, not %v", records[0].Time, wall)
			}
			f := records[1]
			if first, last := wall.Sub(*f.First), wall.Sub(*f.Last); first != 30*time.Second || last != 10*time.Second {
				t.Errorf("first %v ago, last %v ago", first, last)
			}
			*since = 0 // it is read while a later packet is decided
			for _, rec := range r.Read(Filter{})[1:] {
				for _, at := range []*time.Time{rec.First, rec.Last, rec.Time} {
					if at != nil && at.After(*wall) {
						t.Errorf("%s at %v, after %v", rec.Type, at, wall)
					}
				}
			}
		})
	}
}

// A flow is remembered if the kernel remembers its verdict now, by the clock of the answer.
func TestFlowsAreRemembered(t *testing.T) {
	r, wall, since := newRecorder()
	s := clusterOf(2)
	r.cfg.Remembers = func(c packet.Class) (policy.Decision, time.Time, bool) {
		return denied, r.epoch.Add(2 * time.Second), c == packet.Class{Src: web, Dst: db, Proto: packet.TCP, Port: 80}
	}
	decide(r, tcp(web, db, 80), allowed, s, 0) // before the policies changed
	decide(r, tcp(web, db, 80), denied, s, time.Second)
	decide(r, tcp(web, db, 1080), denied, s, time.Second)
	*since = 5 * time.Second
	*wall = wall.Add(-time.Hour)
	got := map[string]string{}
	for _, record := range r.Read(Filter{}) {
		if record.Type == TypeFlow {
			got[fmt.Sprintf("%s %d", record.Verdict, record.Port)] = fmt.Sprint(record.Remembered)
		}
	}
	want := map[string]string{"allow 80": "<nil>", "deny 80": wall.Add(-3 * time.Second).String(), "deny 1080": "<nil>"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("remembered since (-want +got):\n%s", diff)
	}
}

func TestReadingGoesOnAfterACursor(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	read := func(cursor string) ([]string, string) {
		records := r.Read(Filter{After: cursor})
		return lines(records), records[0].Cursor
	}
	decide(r, tcp(web, db, 1), denied, s, 0)
	first, cursor := read("")
	if len(first) != 2 {
		t.Fatalf("%q", first)
	}
	if got, next := read(cursor); len(got) != 0 || next != cursor {
		t.Errorf("nothing has changed, and %q is read, cursor %s after %s", got, next, cursor)
	}
	decide(r, tcp(web, db, 2), allowed, s, 0)
	if got, _ := read(cursor); len(got) != 1 || !strings.Contains(got[0], "TCP 2 allow") {
		t.Errorf("a flow is new, and %q is read", got)
	}
	for _, wrong := range []string{"x", "1-1", "-", strings.Replace(cursor, "-", "0-", 1)} {
		if got, _ := read(wrong); len(got) != 3 {
			t.Errorf("after cursor %q of another agent %q is read, not all", wrong, got)
		}
	}
}

func TestFilters(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	for port, d := range []policy.Decision{allowed, denied} {
		decide(r, tcp(web, db, uint16(port)), d, s, 0)
		decide(r, tcp(other, outside, uint16(port)), d, s, 0)
	}
	audited := allowed
	r.decide(tcp(other, db, 7), &audited, s, &denied, r.epoch)
	for _, tc := range []struct {
		filter         Filter
		flows, denials int
	}{
		{Filter{}, 5, 2},
		{Filter{Audited: true}, 1, 0},
		{Filter{Denied: true}, 2, 2},
		{Filter{Namespace: "shop"}, 3, 1},
		{Filter{Namespace: "shop", Denied: true}, 1, 1},
		{Filter{Namespace: "other", Pod: "other"}, 3, 1},
		{Filter{Namespace: "shop", Pod: "other"}, 0, 0},
		{Filter{Pod: "db-2"}, 3, 1},
		{Filter{Namespace: "none"}, 0, 0},
	} {
		t.Run(fmt.Sprintf("%+v", tc.filter), func(t *testing.T) {
			w := httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/flows?"+tc.filter.Values().Encode(), nil))
			n := map[string]int{}
			if err := Decode(w.Body, func(rec *Record) error { n[rec.Type]++; return nil }); err != nil {
				t.Fatal(err)
			}
			want := map[string]int{TypeAgent: 1}
			for kind, n := range map[string]int{TypeFlow: tc.flows, TypeDenial: tc.denials} {
				if n > 0 {
					want[kind] = n
				}
			}
			if diff := cmp.Diff(want, n); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
	for query, want := range map[string]string{
		"denied=maybe": `denied="maybe"`, "pods=x": `"pods" is not known`, "rules=true&pod=x": "rules: not with anything else",
	} {
		t.Run(query, func(t *testing.T) {
			w := httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/flows?"+query, nil))
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
				t.Errorf("got %d %s, want %d with %s", w.Code, w.Body, http.StatusBadRequest, want)
			}
		})
	}
}

// Decode returns what Encode wrote.
func TestRecordsAreDecodedAsTheyWere(t *testing.T) {
	r, _, since := newRecorder()
	*since = time.Minute
	s := clusterOf(2)
	decide(r, tcp(web, db, 1), denied, s, 0)
	r.decide(tcp(web, outside, 443), &allowed, s, &denied, r.epoch)
	want := r.Read(Filter{})
	want = append(want, r.Read(Filter{Rules: true})...)
	var b bytes.Buffer
	if err := Encode(&b, want); err != nil {
		t.Fatal(err)
	}
	var got []Record
	if err := Decode(&b, func(rec *Record) error { got = append(got, *rec); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

const goodFlow = `{"type":"flow","node":"n","source":{"address":"10.0.0.1"},"destination":{"address":"10.0.0.2"},"protocol":"TCP","port":80,"verdict":"allow","count":1,"first":"2026-01-02T03:04:05Z","last":"2026-01-02T03:04:05Z"}`

const goodRule = `{"type":"rule","node":"n","verdict":"deny","direction":"ingress","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"db"},"rule":0,"count":1,"last":"2026-01-02T03:04:05Z"}`

func TestWrongRecords(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"a flow", goodFlow, ""},
		{"an empty line", "\n\n" + goodFlow, ""},
		{"a type of a later version", `{"type":"other","node":5.5}`, "line 1"},
		{"a type that is not known", `{"type":"other"}`, ""},
		{"no JSON", "error: no such file", "line 1: invalid character"},
		{"in the second line", goodFlow + "\n{", "line 2: unexpected end"},
		{"no type", `{"node":"n"}`, "no type"},
		{"no node", strings.Replace(goodFlow, `"node":"n",`, "", 1), "no node"},
		{"no source", strings.Replace(goodFlow, "source", "from", 1), "no source"},
		{"no address", strings.Replace(goodFlow, "10.0.0.1", "", 1), "no source"},
		{"a wrong address", strings.Replace(goodFlow, "10.0.0.1", "10.0.0", 1), "10.0.0"},
		{"a wrong port", strings.Replace(goodFlow, ":80,", ":80000,", 1), "port"},
		{"no verdict", strings.Replace(goodFlow, "allow", "", 1), `verdict ""`},
		{"a wrong verdict of audited policies", strings.Replace(goodFlow, `"count"`, `"audit":{"verdict":"drop"},"count"`, 1), `verdict "drop"`},
		{"no count", strings.Replace(goodFlow, `"count":1`, `"count":0`, 1), "no count"},
		{"a wrong time", strings.Replace(goodFlow, "2026-01", "2026-13", 1), "2026-13"},
		{"no last time", strings.Replace(goodFlow, "last", "latest", 1), "no last"},
		{"an agent without a cursor", `{"type":"agent","node":"n","time":"2026-01-02T03:04:05Z"}`, "no cursor"},
		{"a rule", goodRule, ""},
		{"a rule without a policy", strings.Replace(goodRule, "policy", "of", 1), "no policy"},
		{"a rule that decided nothing", strings.Replace(goodRule, `"count":1`, `"count":0`, 1), "no count"},
		{"a rule without a time", strings.Replace(goodRule, "last", "latest", 1), "no last"},
		{"a rule with a wrong verdict", strings.Replace(goodRule, "deny", "drop", 1), `verdict "drop"`},
		{"a denial without a time", strings.Replace(goodFlow, `"flow"`, `"denial"`, 1), "no time"},
		{"a line without an end", strings.Repeat("x", maxLine+1), "line 1 is longer than 65536 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Decode(strings.NewReader(tc.text), func(*Record) error { return nil })
			if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || !strings.Contains(got, tc.want) && err != nil {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(goodFlow))
	f.Add([]byte(strings.Replace(goodFlow, `"flow"`, `"denial","time":"2026-01-02T03:04:05+01:00"`, 1)))
	f.Add([]byte(`{"type":"agent","node":"n","time":"2026-01-02T03:04:05Z","cursor":"1-2","flows":1}` + "\n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var records []Record
		_ = Decode(bytes.NewReader(text), func(r *Record) error {
			records = append(records, *r)
			return nil
		})
		var b bytes.Buffer
		if err := Encode(&b, records); err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		n := 0
		if err := Decode(&b, func(*Record) error { n++; return nil }); err != nil && !strings.Contains(err.Error(), "is longer") || err == nil && n != len(records) {
			t.Fatalf("%d of %d records are decoded again: %v", n, len(records), err)
		}
	})
}

// The log has the changed flows, and continues after an error.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Node: "node-1", Registerer: prometheus.NewRegistry()})
		ctx, stop := context.WithCancel(t.Context())
		w := &unreliable{}
		ended := make(chan error)
		go func() { ended <- r.Log(ctx, w) }()
		logged := func() []Record {
			time.Sleep(logInterval)
			synctest.Wait()
			var records []Record
			if err := Decode(&w.Buffer, func(r *Record) error {
				records = append(records, *r)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			w.Reset()
			return records
		}
		cluster := clusterOf(2)
		if got := logged(); len(got) != 0 {
			t.Errorf("logged %v before any decision", lines(got))
		}
		decide(r, tcp(web, db, 80), allowed, cluster, 0)
		if got := logged(); len(got) != 2 || got[0].Type != TypeAgent || got[1].Count != 1 {
			t.Errorf("logged %v, want one flow", lines(got))
		}
		if got := logged(); len(got) != 0 {
			t.Errorf("logged %v although nothing has changed", lines(got))
		}
		w.err = errors.New("no space left on device")
		decide(r, tcp(web, db, 80), allowed, cluster, 0)
		logged()
		w.err = nil
		decide(r, tcp(web, db, 80), denied, cluster, 0)
		if got := logged(); len(got) != 3 || got[1].Verdict != Deny || got[2].Type != TypeDenial {
			t.Errorf("logged %v, want a denied flow and a denial", lines(got))
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// unreliable is a file that may be full.
type unreliable struct {
	bytes.Buffer
	err error
}

// Write implements io.Writer.
func (u *unreliable) Write(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	return u.Buffer.Write(p)
}

// A denial that a domain name might have prevented says why no name did, and so does its flow.
// Nothing is searched for denials that are not recorded.
func TestDenialsSayWhy(t *testing.T) {
	asked, why := 0, "example.com expired 40 s ago"
	r := New(Config{Node: "node-1", Registerer: prometheus.NewRegistry(), Why: func(s *policy.Snapshot, q policy.Query, at time.Time) string {
		asked++
		if s == nil || q.Packet.Src.Addr() != web || at.IsZero() {
			t.Errorf("asked about %v at %v", q.Packet, at)
		}
		return why
	}})
	s, denied := crawls(), netip.MustParseAddr("198.51.100.1")
	decideBy(r, s, tcp(web, denied, 443), nil)
	decideBy(r, s, tcp(web, netip.MustParseAddr("192.0.2.1"), 443), nil) // allowed
	found := func() (flow, denial string) {
		for _, record := range r.Read(Filter{Denied: true}) {
			switch record.Type {
			case TypeFlow:
				flow += record.Why
			case TypeDenial:
				denial += record.Why
			}
		}
		return flow, denial
	}
	if flow, denial := found(); flow != why || denial != why || asked != 1 {
		t.Errorf("the flow says %q, the denial %q after %d questions, want %q", flow, denial, asked, why)
	}

	why = ""
	for range 100 {
		decideBy(r, s, tcp(web, denied, 443), nil)
	}
	if flow, denial := found(); flow != "" || denial != "example.com expired 40 s ago" || asked != denialsPerSource {
		t.Errorf("the flow says %q, the denials %q after %d questions", flow, denial, asked)
	}
}

// Decisions about an address in dispute are flows and denials of their own, which say so.
func TestRecordsOfDisputedAddresses(t *testing.T) {
	r, _, _ := newRecorder()
	s, disputed := clusterOf(2), denied
	disputed.Disputed = true
	for _, d := range []policy.Decision{denied, disputed, disputed} {
		decide(r, tcp(web, db, 80), d, s, time.Second)
	}
	counts := map[string]uint64{}
	for _, rec := range r.Read(Filter{}) {
		counts[fmt.Sprintf("%s disputed %v", rec.Type, rec.Disputed)] += max(1, rec.Count)
	}
	want := map[string]uint64{"agent disputed false": 1, "flow disputed false": 1, "flow disputed true": 2, "denial disputed false": 1, "denial disputed true": 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("packets by type (-want +got):\n%s", diff)
	}
}

// Each answer of an agent says how many late packets there were, also if there were none.
func TestLatePacketsAreCounted(t *testing.T) {
	r := New(Config{Registerer: prometheus.NewRegistry()})
	for want := range uint64(3) {
		for _, f := range []Filter{{}, {Denied: true}, {Rules: true}} {
			records := r.Read(f)
			if got := records[0].Late; len(records) != 1 || got == nil || *got != want {
				t.Errorf("Read(%+v) = %+v, want %d late packets and no flow", f, records, want)
			}
		}
		r.Tap(&event.Event{Late: true, Snapshot: clusterOf(0)})
	}
}
