package enforce

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// audits evaluates audited policies. It never changes the verdict of a packet.
type audits struct {
	undecided prometheus.Counter
}

func newAudits(reg prometheus.Registerer) *audits {
	a := &audits{
		undecided: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "netpol_audit_undecided_packets_total",
			Help: "Packets for which the verdict of audited policies is not known.",
		}),
	}
	reg.MustRegister(a.undecided)
	return a
}

// evaluate evaluates a packet, decided as d, with s, in which audited policies are enforced.
// It returns that decision and whether its verdict differs from d. A panic during this
// evaluation must not drop the packet.
func (a *audits) evaluate(s *policy.Snapshot, q policy.Query, d policy.Decision) (would policy.Decision, differs bool) {
	defer func() {
		if recover() != nil {
			a.undecided.Inc()
			differs = false
		}
	}()
	if would = s.Evaluate(q); would.Wait() != policy.NoWait {
		a.undecided.Inc() // audited policies must not delay the packet
		return would, false
	}
	return would, would.Action != d.Action
}
