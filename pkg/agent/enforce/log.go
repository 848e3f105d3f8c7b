package enforce

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// The denial log is meant to be read by people, and attackers choose how many packets
// are denied.
const (
	// denialsPerSecond is the most lines in any second. At most repeatsPerSecond of them are
	// from sources that already have a line in the interval, so that new sources always find
	// room.
	denialsPerSecond = 10
	repeatsPerSecond = 5
	// denialInterval is how often the log summarizes what was not logged, and
	// denialsPerSource the most lines of one source in this time.
	denialInterval   = 10 * time.Second
	denialsPerSource = 5
	// denialSources is how many sources are distinguished in an interval. All further ones
	// count as one.
	denialSources = 1024
	// namedSources is how many sources, those with most packets, the log names at the end of
	// an interval, and namedPolicies the most policies that a line names.
	namedSources  = 10
	namedPolicies = 20
)

// messages are the texts of a denialLog for one packet, and for the packets that it did not
// log.
type messages struct{ packet, withheld string }

var (
	deniedMessages = messages{"Packet denied", "Denied packets were not logged"}
	// auditedMessages are for packets that pass because the policies that would deny them are
	// only audited.
	auditedMessages = messages{"Packet would be denied by audited policies", "Packets that audited policies would deny were not logged"}
)

// denialLog logs denied packets at a bounded rate. A nil denialLog logs nothing.
type denialLog struct {
	logger   klog.Logger
	messages messages

	mu      sync.Mutex
	lines   [denialsPerSecond]time.Time // when the latest lines were logged
	next    int                         // the oldest of lines
	sources map[source]denials          // of the current interval, which begins with its first denial
}

// source is the end that a denied packet counts for: the pod that sent it, or else the
// destination, because a sender outside the cluster can choose its address.
type source struct {
	addr netip.Addr // zero if the packet could not be parsed, and for sources beyond denialSources
	sent bool       // addr is the sender
}

// denials counts the denials of one source in an interval.
type denials struct {
	pod              *policy.Endpoint // at the address, nil for none
	logged, withheld int
}

func newDenialLog(logger klog.Logger, m messages) *denialLog {
	// One extra entry is for sources beyond denialSources. The map never grows on the packet
	// path.
	return &denialLog{logger: logger, messages: m, sources: make(map[source]denials, denialSources+1)}
}

// admit counts a denial of src, the address of pod, and reports whether to log it.
func (l *denialLog) admit(src source, pod *policy.Endpoint) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	src, pod, n := l.denialsOf(src, pod)
	n.pod = pod
	ok := n.logged < denialsPerSource && l.reserveLine(now, n.logged > 0)
	if ok {
		n.logged++
	} else {
		n.withheld++
	}
	l.sources[src] = n
	return ok
}

// remembered counts packets that the kernel dropped by a remembered verdict.
func (l *denialLog) remembered(c packet.Class, s *policy.Snapshot, packets uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	src, pod := responsible(c.Src, c.Dst, s)
	src, pod, n := l.denialsOf(src, pod)
	n.pod = pod
	n.withheld += int(packets)
	l.sources[src] = n
}

// responsible returns the source that a denied packet counts for, and its pod.
func responsible(from, to netip.Addr, s *policy.Snapshot) (source, *policy.Endpoint) {
	if pod := s.Endpoint(from); pod != nil {
		return source{addr: from, sent: true}, pod
	}
	return source{addr: to}, s.Endpoint(to)
}

// denialsOf returns the denials of src in this interval, and starts an interval if none runs.
// The caller holds l.mu.
func (l *denialLog) denialsOf(src source, pod *policy.Endpoint) (source, *policy.Endpoint, denials) {
	if len(l.sources) == 0 {
		time.AfterFunc(denialInterval, l.summarize)
	}
	n, known := l.sources[src]
	if !known && len(l.sources) >= denialSources {
		return source{}, nil, l.sources[source{}]
	}
	return src, pod, n
}

// reserveLine reports whether a line may be logged now, and counts it.
func (l *denialLog) reserveLine(now time.Time, repeated bool) bool {
	limit := denialsPerSecond
	if repeated {
		limit = repeatsPerSecond
	}
	// first is the time of the line logged limit lines ago.
	first := l.lines[(l.next+denialsPerSecond-limit)%denialsPerSecond]
	if now.Sub(first) < time.Second {
		return false
	}
	l.lines[l.next] = now
	l.next = (l.next + 1) % denialsPerSecond
	return true
}

// summarize ends an interval and logs what was not logged in it.
func (l *denialLog) summarize() {
	l.mu.Lock()
	sources := maps.Clone(l.sources)
	clear(l.sources)
	l.mu.Unlock()
	maps.DeleteFunc(sources, func(_ source, n denials) bool { return n.withheld == 0 })
	if len(sources) == 0 {
		return
	}
	most := slices.SortedFunc(maps.Keys(sources), func(a, b source) int {
		return cmp.Or(sources[b].withheld-sources[a].withheld, a.addr.Compare(b.addr))
	})
	packets := 0
	var named []string
	for i, s := range most {
		packets += sources[s].withheld
		if i < namedSources {
			named = append(named, fmt.Sprintf("%s: %d", s.describe(sources[s].pod), sources[s].withheld))
		}
	}
	l.logger.Info(l.messages.withheld, "packets", packets, "interval", denialInterval.String(), "sources", len(sources), "most", named)
}

// describe returns the name of the source for the log.
func (s source) describe(pod *policy.Endpoint) string {
	switch {
	case !s.addr.IsValid():
		return "other"
	case s.sent:
		return "from " + pod.String()
	case pod != nil:
		return "to " + pod.String()
	}
	return "to " + s.addr.String()
}

// denied logs a denied packet if there is room for it.
func (l *denialLog) denied(p packet.Packet, d policy.Decision, s *policy.Snapshot) {
	if l.admits(&p, s) {
		l.log(p, d, s)
	}
}

// admits counts a denied packet, and reports whether to log it.
func (l *denialLog) admits(p *packet.Packet, s *policy.Snapshot) bool {
	return l != nil && l.admit(responsible(p.Src.Addr(), p.Dst.Addr(), s))
}

// log logs a denied packet with its pods and the policies that denied it. more holds further
// key-value pairs.
func (l *denialLog) log(p packet.Packet, d policy.Decision, s *policy.Snapshot, more ...any) {
	from, to := s.Endpoint(p.Src.Addr()), s.Endpoint(p.Dst.Addr())
	args := []any{
		"protocol", p.Proto.String(),
		"src", p.Src.String(), "srcPod", name(from),
		"dst", p.Dst.String(), "dstPod", name(to),
		"direction", d.Direction.String(), "tier", d.Tier.String(), "reason", d.Reason.String(),
	}
	switch d.Reason {
	case policy.RuleMatched:
		args = append(args, "policy", d.Policy.String(), "rule", d.Rule)
	case policy.Isolated:
		args = appendIsolating(args, d, from, to)
	default:
		args = append(args, "policy", d.Policy.String())
	}
	if d.Disputed {
		args = append(args, "disputed", true)
	}
	l.logger.Info(l.messages.packet, append(args, more...)...)
}

// appendIsolating appends all policies that isolate the pod: a rule in any of them could
// allow the packet.
func appendIsolating(args []any, d policy.Decision, from, to *policy.Endpoint) []any {
	var selecting []*policy.Ref
	if d.Direction == policy.Ingress {
		selecting = to.Ingress.Policies
	} else {
		selecting = from.Egress.Policies
	}
	var names []string
	more := 0
	for _, ref := range selecting {
		switch {
		case ref.Kind != d.Policy.Kind:
		case len(names) < namedPolicies:
			names = append(names, ref.String())
		default:
			more++
		}
	}
	args = append(args, "policies", names)
	if more > 0 {
		args = append(args, "morePolicies", more)
	}
	return args
}

// unparsable logs a packet whose addresses could not be read.
func (l *denialLog) unparsable(err error) {
	if l != nil && l.admit(source{}, nil) {
		l.logger.Info("Packet cannot be parsed", "reason", err.Error())
	}
}

func name(e *policy.Endpoint) string {
	if e == nil {
		return ""
	}
	return e.String()
}
