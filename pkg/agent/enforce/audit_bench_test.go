package enforce

import (
	"net/netip"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// oneAudited returns the snapshot of snapshot(), if audit is set with one more pod that an
// audited policy selects.
func oneAudited(audit bool) *policy.Snapshot {
	isolatedPod := *snapshot().Endpoint(isolated)
	m := policy.Model{}
	pods := map[netip.Addr]*policy.Endpoint{isolated: &isolatedPod, open: {Namespace: "x", Name: "open"}}
	if audit {
		pods[audited] = auditing().Endpoint(audited)
		m.Audit = &policy.Audit{}
	}
	m.Endpoints = policy.NewEndpoints(pods)
	return policy.New(m)
}

var auditedSnapshots = []struct {
	name     string
	snapshot *policy.Snapshot
}{{"no policy is audited", oneAudited(false)}, {"policies of other pods are audited", oneAudited(true)}}

// TestAuditsDoNotAllocate covers packets of pods with and without audited policies.
func TestAuditsDoNotAllocate(t *testing.T) {
	for _, tt := range auditedSnapshots {
		for name, to := range map[string]netip.Addr{"another pod": isolated, "an audited pod": audited} {
			t.Run(tt.name+", to "+name, func(t *testing.T) {
				e := New(Config{Taps: counting(prometheus.NewRegistry(), logr.Discard())})
				e.Swap(tt.snapshot)
				in := Input{Payload: tcp(open, to, 80)}
				e.Decide(in)
				if n := testing.AllocsPerRun(100, func() { e.Decide(in) }); n > 0 {
					t.Errorf("%v allocations for each packet", n)
				}
			})
		}
	}
}
