package flows

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Filter selects records. The zero Filter selects all.
type Filter struct {
	// Namespace and Pod select by the source or the destination.
	Namespace, Pod string
	// Denied selects denied packets.
	Denied bool
	// Audited selects decisions that audited policies would change.
	Audited bool
	// After is a Summary.Cursor and selects what changed since. A cursor of another agent, or
	// of an earlier process, selects all records.
	After string
	// Rules selects a record for each rule instead of flows and denials. No other field may
	// be set.
	Rules bool
}

// Values returns f as the query of a URL.
func (f Filter) Values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{"namespace": f.Namespace, "pod": f.Pod, "after": f.After} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for name, set := range map[string]bool{"denied": f.Denied, "audited": f.Audited, "rules": f.Rules} {
		if set {
			v.Set(name, "true")
		}
	}
	return v
}

// ParseFilter returns the filter of the query of a URL. The error names the unknown parameter
// or the wrong value.
func ParseFilter(v url.Values) (Filter, error) {
	var f Filter
	for name, values := range v {
		value := values[len(values)-1]
		switch name {
		case "namespace":
			f.Namespace = value
		case "pod":
			f.Pod = value
		case "after":
			f.After = value
		case "denied", "audited", "rules":
			set, err := strconv.ParseBool(value)
			if err != nil {
				return f, fmt.Errorf("%s=%q: must be true or false", name, value)
			}
			*map[string]*bool{"denied": &f.Denied, "audited": &f.Audited, "rules": &f.Rules}[name] = set
		default:
			return f, fmt.Errorf("%q is not known", name)
		}
	}
	return f, f.Check()
}

// Check returns an error if fields of f exclude each other.
func (f *Filter) Check() error {
	if f.Rules && *f != (Filter{Rules: true}) {
		return errors.New("rules: not with anything else")
	}
	return nil
}

func (f *Filter) selects(k *key, from, to podName) bool {
	return (!f.Denied || k.action == policy.Deny) && (!f.Audited || k.audited) && (f.selectsPod(from) || f.selectsPod(to))
}

func (f *Filter) selectsPod(p podName) bool {
	return (f.Namespace == "" || f.Namespace == p.namespace) && (f.Pod == "" || f.Pod == p.name)
}

// Read returns the agent's record, then either flows, the most recently seen first, and
// denials, the oldest first; or rules. No time is later than now, even if the clock was set
// back.
func (r *Recorder) Read(f Filter) []Record {
	records := r.read(f)
	if r.cfg.State != nil {
		state := r.cfg.State()
		records[0].State = &state
	}
	return records
}

func (r *Recorder) read(f Filter) []Record {
	r.drain()
	if f.Rules {
		return r.readRules()
	}
	if !f.Denied {
		r.countBytes()
	}
	flows, denials, summary, c := r.copy(&f)
	records := make([]Record, 0, 1+len(flows)+len(denials))
	records = append(records, r.agent(summary, c))
	for i := range flows {
		record := flows[i].record(r.cfg.Node, c)
		record.Remembered = r.remembered(&flows[i].key, c)
		records = append(records, record)
	}
	for i := range denials {
		records = append(records, denials[i].record(r.cfg.Node, c))
	}
	return records
}

// readRules returns the agent's record and one for each rule that decided.
func (r *Recorder) readRules() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, c := r.summary(), r.clock()
	s.Lost = r.buffer.lost.Load() // rules also count decisions that the table has no room for
	return append([]Record{r.agent(s, c)}, r.decided.records(r.cfg.Node, c)...)
}

// copy returns copies of the records that f selects.
func (r *Recorder) copy(f *Filter) (flows []flow, denials []denial, s *Summary, c *clock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	after := r.parseCursor(f.After)
	for flow := r.table.all.newest; flow != nil && flow.changed > after; flow = flow.links[allFlows].older {
		if f.selects(&flow.key, flow.from, flow.to) {
			flows = append(flows, *flow)
		}
	}
	for _, d := range r.denials.ordered(after) {
		if f.selects(&d.key, d.from, d.to) {
			denials = append(denials, d)
		}
	}
	return flows, denials, r.summary(), r.clock()
}

// summary summarizes all records. The caller holds r.mu.
func (r *Recorder) summary() *Summary {
	late := r.late.Load()
	return &Summary{
		Cursor: r.cursor(), Flows: len(r.table.flows), MaxFlows: r.table.room, AuditOnly: r.cfg.AuditOnly,
		Evicted: r.table.evicted, Lost: r.lost(), Withheld: r.denied.total, Late: &late,
	}
}

// agent returns the record of the agent.
func (r *Recorder) agent(s *Summary, c *clock) Record {
	s.Started = c.at(0)
	return Record{Type: TypeAgent, Node: r.cfg.Node, Time: c.at(c.now), Summary: s}
}

// cursor identifies this recorder and its latest change.
func (r *Recorder) cursor() string {
	return fmt.Sprintf("%x-%x", r.epoch.UnixNano(), r.table.changes)
}

// parseCursor returns the number of a change, 0 if the cursor is not one of this recorder.
func (r *Recorder) parseCursor(cursor string) uint64 {
	epoch, change, _ := strings.Cut(cursor, "-")
	n, err := strconv.ParseUint(change, 16, 64)
	if err != nil || epoch != strconv.FormatInt(r.epoch.UnixNano(), 16) {
		return 0
	}
	return n
}

// clock converts times since the start of a recorder to wall clock time. It counts back from
// now, so that setting the clock leads to no times in the future and keeps the order.
type clock struct {
	wall time.Time
	now  time.Duration
}

func (r *Recorder) clock() *clock { return &clock{wall: r.wall(), now: r.since()} }

func (c *clock) at(at time.Duration) *time.Time {
	t := c.wall.Add(-max(0, c.now-at)).UTC().Round(0)
	return &t
}

func (f *flow) record(node string, c *clock) Record {
	k := f.key
	if f.addr.IsValid() {
		*k.peer() = f.addr
	}
	r := k.record(TypeFlow, node, f.from, f.to)
	r.Destination.Names = f.names
	r.Why, r.Count, r.Bytes, r.First, r.Last = f.why, f.count, f.bytes, c.at(f.first), c.at(f.last)
	return r
}

// remembered returns since when the kernel remembers the verdict of a flow, nil if it does not
// or if the flow has several addresses.
func (r *Recorder) remembered(k *key, c *clock) *time.Time {
	if r.cfg.Remembers == nil || k.audited {
		return nil
	}
	d, since, ok := r.cfg.Remembers(packet.Class{Src: k.src, Dst: k.dst, Proto: k.proto, Port: k.port})
	if !ok || verdictOf(&d) != k.verdict {
		return nil
	}
	return c.at(since.Sub(r.epoch))
}

func (d *denial) record(node string, c *clock) Record {
	r := d.key.record(TypeDenial, node, d.from, d.to)
	r.Source.Port, r.Why = d.srcPort, d.why
	r.Time = c.at(d.at)
	return r
}

func (k *key) record(kind, node string, from, to podName) Record {
	r := Record{
		Type: kind, Node: node,
		Source:      &End{Namespace: from.namespace, Pod: from.name, Address: k.src},
		Destination: &End{Namespace: to.namespace, Pod: to.name, Address: k.dst},
		Protocol:    k.proto.String(), Port: k.port,
		Decision: k.verdict.record(),
	}
	end := r.Destination
	if k.direction == policy.Ingress {
		end = r.Source
	}
	if k.outside.Block.IsValid() {
		end.Block = k.outside.Block.String()
	}
	end.Domain = printable.Text(k.outside.Domain.String())
	if k.audited {
		would := k.would.record()
		r.Audit = &would
	}
	return r
}

func (v *verdict) record() Decision {
	d := Decision{Verdict: v.action.String(), Direction: v.direction.String(), Tier: v.tier.String(), Reason: v.reason.String(), Disputed: v.disputed}
	if v.policy != (policyName{}) {
		d.Policy = &Policy{Kind: v.policy.kind, Namespace: v.policy.namespace, Name: v.policy.name}
	}
	if v.reason == policy.RuleMatched {
		d.Rule = &v.rule
	}
	return d
}
