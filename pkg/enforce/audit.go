package enforce

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// maxAudited bounds the policies, directions and verdicts that are counted apart. All
// further ones are counted as one.
const maxAudited = 1024

// otherAudited is the policy of these.
const otherAudited = "other"

// audits counts and logs what audited policies would make of packets. It never changes
// what becomes of them.
type audits struct {
	log       *denialLog
	packets   *prometheus.CounterVec
	undecided prometheus.Counter

	mu      sync.Mutex
	counted map[auditKey]prometheus.Counter
}

// auditKey is the policy that would decide, and how.
type auditKey struct {
	kind, namespace, name string
	direction             policy.Direction
	action                policy.Action
}

func newAudits(reg prometheus.Registerer) *audits {
	a := &audits{
		packets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "netpol_audit_packets_total",
			Help: "Packets to which audited policies would give another verdict than they got, by this verdict, by the policy that would decide and by direction.",
		}, []string{"kind", "namespace", "policy", "direction", "verdict"}),
		undecided: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_audit_undecided_packets_total",
			Help: "Packets of pods that audited policies select of which it is not known what these policies would make of them.",
		}),
		counted: make(map[auditKey]prometheus.Counter),
	}
	reg.MustRegister(a.packets, a.undecided)
	return a
}

// evaluate evaluates by s, in which audited policies are enforced, a packet on which the
// decision is d. It returns the decision there and whether its verdict is another one. A fault
// in doing so must not cost the packet.
func (a *audits) evaluate(s *policy.Snapshot, q policy.Query, d policy.Decision) (would policy.Decision, other bool) {
	defer func() {
		if recover() != nil {
			a.undecided.Inc()
			other = false
		}
	}()
	would = s.Evaluate(q)
	switch would.Reason {
	case policy.UnknownPod, policy.UnknownSource, policy.NotEvaluated:
		a.undecided.Inc() // the packet does not wait for it
		return would, false
	}
	if would.Action == d.Action {
		return would, false
	}
	a.count(would)
	if !would.Allowed() {
		a.log.denied(q.Packet, would, s)
	}
	return would, true
}

func (a *audits) count(would policy.Decision) {
	key := auditKey{direction: would.Direction, action: would.Action}
	if would.Policy != nil {
		key.kind, key.namespace, key.name = would.Policy.Kind, would.Policy.Namespace, would.Policy.Name
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counted[key]
	if c == nil {
		labels := key
		if len(a.counted) >= maxAudited {
			labels.kind, labels.namespace, labels.name = otherAudited, "", otherAudited
		}
		c = a.packets.WithLabelValues(labels.kind, labels.namespace, labels.name, labels.direction.String(), labels.action.String())
		if labels == key {
			a.counted[key] = c
		}
	}
	c.Inc()
}
