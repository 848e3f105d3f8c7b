package flows

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Attackers choose how many packets are denied.
const (
	// denialsPerSecond is the most denials that are recorded and logged in any second. At most
	// repeatsPerSecond of them are from sources that already have one in the interval, so that new
	// sources always find room.
	denialsPerSecond = 10
	repeatsPerSecond = 5
	// denialInterval is how often the log summarizes what was withheld, and denialsPerSource the
	// most denials of one source in this time.
	denialInterval   = 10 * time.Second
	denialsPerSource = 5
	// denialSources is how many sources are distinguished in an interval. All further ones
	// count as one.
	denialSources = 1024
	// namedSources is how many sources, those with most packets, a summary names, and
	// namedPolicies the most policies that a line names.
	namedSources  = 10
	namedPolicies = 20
)

// denialLog chooses which denied packets are recorded and logged, at a bounded rate. It is not safe
// for concurrent use.
type denialLog struct {
	logger          klog.Logger // logs nothing if it is zero
	packet, summary string      // the messages

	epoch   time.Time
	free    [denialsPerSecond]time.Duration // when each of the latest denials makes room for another one
	next    int                             // the oldest of free
	begun   time.Duration                   // the current interval
	sources map[blamed]tally                // of the interval
	total   uint64                          // packets withheld since the start
}

// blamed is the end that a denied packet counts for: the pod that sent it, or else the
// destination, because a sender outside the cluster can choose its address.
type blamed struct {
	addr netip.Addr // zero for sources beyond denialSources
	sent bool       // addr is the sender
}

// tally counts the denials of one source in an interval.
type tally struct {
	pod                *policy.Endpoint // at the address, nil for none
	admitted, withheld int
}

func newDenialLog(logger klog.Logger, epoch time.Time, packet, summary string) *denialLog {
	return &denialLog{logger: logger, packet: packet, summary: summary, epoch: epoch, sources: make(map[blamed]tally)}
}

// admits reports whether to record and log the first packet of d, and counts all of them.
func (l *denialLog) admits(d *decided) bool {
	at := d.first.Sub(l.epoch)
	l.tick(at)
	source, n := l.tallyOf(d)
	ok := n.admitted < denialsPerSource && l.reserve(at, n.admitted > 0)
	withheld := d.count
	if ok {
		n.admitted++
		withheld--
	}
	n.withheld += int(withheld)
	l.total += withheld
	l.sources[source] = n
	return ok
}

// withhold counts packets that are neither recorded nor logged.
func (l *denialLog) withhold(d *decided) {
	l.tick(d.first.Sub(l.epoch))
	source, n := l.tallyOf(d)
	n.withheld += int(d.count)
	l.total += d.count
	l.sources[source] = n
}

// tallyOf returns the source of d and its tally in this interval.
func (l *denialLog) tallyOf(d *decided) (blamed, tally) {
	source, pod := d.blamed()
	n, known := l.sources[source]
	if !known && len(l.sources) >= denialSources {
		return blamed{}, l.sources[blamed{}]
	}
	n.pod = pod
	return source, n
}

// reserve reports whether there is room for a denial at this time, and takes it.
func (l *denialLog) reserve(at time.Duration, repeated bool) bool {
	limit := denialsPerSecond
	if repeated {
		limit = repeatsPerSecond
	}
	if at < l.free[(l.next+denialsPerSecond-limit)%denialsPerSecond] {
		return false
	}
	l.free[l.next] = at + time.Second
	l.next = (l.next + 1) % denialsPerSecond
	return true
}

// tick ends the interval if it is over, and logs what was withheld in it.
func (l *denialLog) tick(at time.Duration) {
	if at-l.begun < denialInterval {
		return
	}
	l.begun = at
	if l.logger.Enabled() {
		l.summarize()
	}
	clear(l.sources)
}

func (l *denialLog) summarize() {
	maps.DeleteFunc(l.sources, func(_ blamed, n tally) bool { return n.withheld == 0 })
	if len(l.sources) == 0 {
		return
	}
	most := slices.SortedFunc(maps.Keys(l.sources), func(a, b blamed) int {
		return cmp.Or(l.sources[b].withheld-l.sources[a].withheld, a.addr.Compare(b.addr))
	})
	packets := 0
	var named []string
	for i, s := range most {
		packets += l.sources[s].withheld
		if i < namedSources {
			named = append(named, fmt.Sprintf("%s: %d", s.describe(l.sources[s].pod), l.sources[s].withheld))
		}
	}
	l.logger.Info(l.summary, "packets", packets, "interval", denialInterval.String(), "sources", len(most), "most", named)
}

// describe returns the name of the source for the log.
func (b blamed) describe(pod *policy.Endpoint) string {
	switch {
	case !b.addr.IsValid():
		return "other"
	case b.sent:
		return "from " + pod.String()
	case pod != nil:
		return "to " + pod.String()
	}
	return "to " + b.addr.String()
}

// log logs the first packet of d with its pods in s and the policies that denied it. why is that of
// Config.Why.
func (l *denialLog) log(d *decided, by *policy.Decision, s *policy.Snapshot, why string) {
	if !l.logger.Enabled() {
		return
	}
	from, to := s.Endpoint(d.packet.Src.Addr()), s.Endpoint(d.packet.Dst.Addr())
	args := []any{
		"protocol", d.packet.Proto.String(),
		"src", d.packet.Src.String(), "srcPod", name(from),
		"dst", d.packet.Dst.String(), "dstPod", name(to),
		"direction", by.Direction.String(), "tier", by.Tier.String(), "reason", by.Reason.String(),
	}
	pod := from
	if by.Direction == policy.Ingress {
		pod = to
	}
	switch {
	case by.Reason == policy.RuleMatched:
		args = append(args, "policy", by.Policy.String(), "rule", by.Rule)
	case by.Reason == policy.Isolated && pod != nil:
		args = appendIsolating(args, by, pod)
	default:
		args = append(args, "policy", by.Policy.String())
	}
	if by.Disputed {
		args = append(args, "disputed", true)
	}
	if why != "" {
		args = append(args, "names", why)
	}
	l.logger.Info(l.packet, args...)
}

// appendIsolating appends all policies that isolate the pod: a rule in any of them could
// allow the packet.
func appendIsolating(args []any, by *policy.Decision, pod *policy.Endpoint) []any {
	chain := pod.Egress
	if by.Direction == policy.Ingress {
		chain = pod.Ingress
	}
	var names []string
	more := 0
	for _, ref := range chain.Policies {
		switch {
		case ref.Kind != by.Policy.Kind:
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

func name(e *policy.Endpoint) string {
	if e == nil {
		return ""
	}
	return e.String()
}
