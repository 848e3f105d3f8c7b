package enforce

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// audits logs what audited policies would make of packets. It never changes what becomes of
// them.
type audits struct {
	log       *denialLog
	undecided prometheus.Counter
}

func newAudits(reg prometheus.Registerer) *audits {
	a := &audits{
		undecided: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_audit_undecided_packets_total",
			Help: "Packets of pods that audited policies select of which it is not known what these policies would make of them.",
		}),
	}
	reg.MustRegister(a.undecided)
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
	if !would.Allowed() {
		a.log.denied(q.Packet, would, s)
	}
	return would, true
}
