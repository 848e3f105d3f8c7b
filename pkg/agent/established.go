package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// newCutter returns nil where established connections go on.
func newCutter(cfg Config, reg prometheus.Registerer) (*conntrack.Cutter, error) {
	if cfg.CutMark == 0 {
		return nil, nil
	}
	return conntrack.New(conntrack.Config{Mark: cfg.CutMark, Registerer: reg})
}

// established has connections cut that s denies for good. What depends on a pod
// that is not known, no longer or not yet, stays as it is.
func established(s *policy.Snapshot) conntrack.Judge {
	return func(p packet.Packet) conntrack.Verdict {
		d := s.Evaluate(p)
		switch {
		case d.Verdict == policy.Allow:
			return conntrack.Go
		case d.Reason == policy.UnknownPod:
			return conntrack.Leave
		}
		return conntrack.Cut
	}
}
