package packets

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

var (
	failureNames  = [...]string{event.NoSnapshot: "no_snapshot", event.Unparsable: "unparsable", event.UnknownPod: "unknown_pod", event.NotEvaluated: "not_evaluated", event.Repeated: ""}
	verdictNames  = [...]string{event.Drop: "drop", event.Accept: "accept"}
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
	undecided    prometheus.Counter // by audited policies
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
		Help: "Packets decided. Protocol hidden: its ports cannot be read. Family unknown: it cannot be parsed.",
	}, []string{"protocol", "family", "verdict"})
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_decisions_total",
		Help: "First packets decided by policy. Tier default: no policy applies.",
	}, []string{"verdict", "tier", "direction"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_failure_policy_packets_total",
		Help: "Packets that could not be evaluated by policy. not_evaluated: which rules select the peer was not known in time.",
	}, []string{"failure", "verdict"})
	late := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_late_packets_total",
		Help: "Packets decided that do not begin a connection.",
	}, []string{"protocol", "verdict"})
	m := &metrics{undecided: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_audit_undecided_packets_total",
		Help: "Packets for which the verdict of audited policies is not known.",
	}), namesRefused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "netpol_names_refused_packets_total",
		Help: "Packets denied because domain names do not match the address: of a pod or node, link-local, or of a metadata service.",
	})}
	disputed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_disputed_packets_total",
		Help: "First packets whose peer may be one of several pods, because statuses disagree about its address.",
	}, []string{"verdict"})
	reg.MustRegister(m, count, decisions, failures, late, m.namesRefused, m.undecided, disputed)
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
			if name == "" || event.Failure(f) == event.NotEvaluated && event.Result(v) == event.Accept {
				continue // no failure, or no flag accepts these
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

// count counts a packet that has its verdict, or that the kernel decided. A packet that could not be
// parsed is the zero Packet and counts as protocol "other" of family "unknown". ICMP in IPv6 and ICMPv6
// in IPv4 have no meaning and count as "other", too.
func (m *metrics) count(ev *event.Event) {
	protocol, family := protocolLabel(ev.Packet.Proto), family(ev.Packet.Src.Addr())
	if !possible(protocol, family) {
		protocol = protoOther
	}
	verdict := event.Drop
	if ev.Result.Accepts() {
		verdict = event.Accept
	}
	pm := &m.packets[protocol][family]
	if !ev.ByKernel {
		pm.latency.observe(ev.Latency)
	}
	pm.count[verdict].Add(float64(ev.Count))
	if ev.Late {
		m.late[protocolLabel(ev.Packet.Proto)][verdict].Inc()
	}
	switch {
	case ev.Failure == event.NoFailure:
		m.decided(ev)
	case failureNames[ev.Failure] != "" && (verdict == event.Accept || !ev.Late):
		m.failures[ev.Failure][verdict].Inc()
	}
}

// decided counts a packet that policies decided as an attempt to connect.
func (m *metrics) decided(ev *event.Event) {
	if ev.Late || ev.Related {
		return
	}
	d, packets := &ev.Decision, float64(ev.Count)
	m.decisions[d.Action][d.Tier][d.Direction].Add(packets)
	if d.Disputed {
		m.disputed[verdictOf(d)].Add(packets)
	}
	if ev.Audit == event.AuditUndecided {
		m.undecided.Inc()
	}
	if !ev.ByKernel && !d.Allowed() && d.Direction == policy.Egress && ev.Snapshot.NamesRefused(ev.Query) {
		m.namesRefused.Inc()
	}
}

// verdictOf returns the verdict of a decision.
func verdictOf(d *policy.Decision) event.Result {
	if d.Allowed() {
		return event.Accept
	}
	return event.Drop
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
