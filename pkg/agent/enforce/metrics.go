package enforce

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// failure is a reason why no policy decided a packet.
type failure int

const (
	noSnapshot failure = iota
	unparsable
	unknownPod
	notEvaluated
)

var (
	failureNames  = [...]string{noSnapshot: "no_snapshot", unparsable: "unparsable", unknownPod: "unknown_pod", notEvaluated: "not_evaluated"}
	verdictNames  = [...]string{Drop: "drop", Accept: "accept"}
	familyNames   = [...]string{familyUnknown: "unknown", familyIPv4: "IPv4", familyIPv6: "IPv6"}
	protocolNames = [...]string{protoOther: "other", protoTCP: "TCP", protoUDP: "UDP", protoSCTP: "SCTP", protoICMP: "ICMP", protoICMPv6: "ICMPv6", protoHidden: "hidden"}
)

const (
	familyUnknown = iota
	familyIPv4
	familyIPv6
)

const (
	protoOther = iota
	protoTCP
	protoUDP
	protoSCTP
	protoICMP
	protoICMPv6
	protoHidden // the transport header cannot be read
)

// metrics resolves all counters by label in advance, so that a packet costs no look-up and no
// allocation.
type metrics struct {
	packets   [len(protocolNames)][len(familyNames)]packetMetrics
	decisions [2][4][2]prometheus.Counter // by allow, tier, direction
	failures  [len(failureNames)][len(verdictNames)]prometheus.Counter
	late      [len(protocolNames)][len(verdictNames)]prometheus.Counter

	namesRefused prometheus.Counter
	disputed     [len(verdictNames)]prometheus.Counter
}

type packetMetrics struct {
	latency latency
	count   [len(verdictNames)]prometheus.Counter
}

// Existing dashboards use these names without the prefix netpol_, and microseconds.
var (
	processTime = prometheus.NewDesc("packet_process_time",
		"Time to decide one packet, in microseconds.", []string{"protocol", "family"}, nil)
	processDuration = prometheus.NewDesc("packet_process_duration_microseconds",
		"Quantiles of the time to decide one packet.", []string{"protocol", "family"}, nil)
)

// Describe implements prometheus.Collector for the latencies.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- processTime
	ch <- processDuration
}

// Collect implements prometheus.Collector for the latencies.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for p, protocol := range protocolNames {
		for f, family := range familyNames {
			if possible(p, f) {
				m.packets[p][f].latency.collect(ch, processTime, processDuration, now, protocol, family)
			}
		}
	}
}

func newMetrics(reg prometheus.Registerer) *metrics {
	count := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "packet_count",
		Help: "Packets decided. Protocol hidden: the ports cannot be read. Family unknown: the packet cannot be parsed.",
	}, []string{"protocol", "family", "verdict"})
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_decisions_total",
		Help: "First packets decided by policy. Tier default: no policy applies.",
	}, []string{"verdict", "tier", "direction"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_failure_policy_packets_total",
		Help: "Packets that could not be evaluated by policy. not_evaluated: which rules select the peer was not known in time. Late packets that were dropped do not count.",
	}, []string{"failure", "verdict"})
	late := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_late_packets_total",
		Help: "Packets decided that do not begin a connection.",
	}, []string{"protocol", "verdict"})
	m := &metrics{namesRefused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_names_refused_packets_total",
		Help: "Packets denied because domain names do not match the address: of a pod or node, link-local, or of a metadata service.",
	})}
	disputed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_disputed_packets_total",
		Help: "First packets whose peer may be one of several pods, because statuses disagree about its address. They are dropped if they are denied for one of these pods.",
	}, []string{"verdict"})
	reg.MustRegister(m, count, decisions, failures, late, m.namesRefused, disputed)
	for v, verdict := range verdictNames {
		m.disputed[v] = disputed.WithLabelValues(verdict)
	}
	for p, protocol := range protocolNames {
		for v, verdict := range verdictNames {
			m.late[p][v] = late.WithLabelValues(protocol, verdict)
		}
	}
	for p, protocol := range protocolNames {
		for f, family := range familyNames {
			if !possible(p, f) {
				continue
			}
			pm := &m.packets[p][f]
			for v, verdict := range verdictNames {
				pm.count[v] = count.WithLabelValues(protocol, family, verdict)
			}
		}
	}
	m.setDecisions(decisions)
	for f, name := range failureNames {
		for v, verdict := range verdictNames {
			if failure(f) == notEvaluated && Result(v) == Accept {
				continue // no flag accepts these
			}
			m.failures[f][v] = failures.WithLabelValues(name, verdict)
		}
	}
	return m
}

// setDecisions takes the counters of the decisions that are possible from vec.
func (m *metrics) setDecisions(vec *prometheus.CounterVec) {
	for _, v := range []policy.Action{policy.Deny, policy.Allow} {
		for t := range m.decisions[v] {
			if v == policy.Deny && policy.Tier(t) == policy.DefaultTier {
				continue // packets that no policy decides are allowed
			}
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				m.decisions[v][t][d] = vec.WithLabelValues(v.String(), policy.Tier(t).String(), d.String())
			}
		}
	}
}

// possible reports whether packets can have this protocol in this family. Packets without a
// family could not be parsed.
func possible(protocol, family int) bool {
	switch protocol {
	case protoOther:
		return true
	case protoICMP:
		return family == familyIPv4
	case protoICMPv6:
		return family == familyIPv6
	}
	return family != familyUnknown
}

// observe counts a decided packet. A packet that could not be parsed is the zero Packet and
// counts as protocol "other" of family "unknown". ICMP in IPv6 and ICMPv6 in IPv4 have no
// meaning and count as "other", too.
func (m *metrics) observe(p packet.Packet, r Result, duration time.Duration) {
	protocol, family := protocolLabel(p.Proto), family(p.Src.Addr())
	if !possible(protocol, family) {
		protocol = protoOther
	}
	pm := &m.packets[protocol][family]
	pm.latency.observe(duration)
	pm.count[verdictLabel(r)].Inc()
}

// remembered counts packets of a class that the kernel decided.
func (m *metrics) remembered(c packet.Class, d policy.Decision, packets uint64) {
	r := Drop
	if d.Allowed() {
		r = Accept
	}
	m.packets[protocolLabel(c.Proto)][family(c.Src)].count[r].Add(float64(packets))
	m.decided(d, float64(packets))
}

// verdictLabel returns the index of the verdict of r.
func verdictLabel(r Result) Result {
	switch r {
	case Remember:
		return Accept
	case Reject:
		return Drop
	}
	return r
}

// decided counts packets that were decided as d.
func (m *metrics) decided(d policy.Decision, packets float64) {
	m.decisions[d.Action][d.Tier][d.Direction].Add(packets)
	if !d.Disputed {
		return
	}
	verdict := Drop
	if d.Allowed() {
		verdict = Accept
	}
	m.disputed[verdict].Add(packets)
}

// failure counts a packet to which a failure policy applies, and returns the result.
func (m *metrics) failure(f failure, open bool) Result {
	r := Drop
	if open {
		r = Accept
	}
	m.failures[f][r].Inc()
	return r
}

func protocolLabel(p packet.Proto) int {
	switch p {
	case packet.TCP:
		return protoTCP
	case packet.UDP:
		return protoUDP
	case packet.SCTP:
		return protoSCTP
	case packet.ICMP:
		return protoICMP
	case packet.ICMPv6:
		return protoICMPv6
	}
	if p.Hidden() {
		return protoHidden
	}
	return protoOther
}

func family(a netip.Addr) int {
	switch {
	case a.Is4():
		return familyIPv4
	case a.Is6():
		return familyIPv6
	}
	return familyUnknown
}
