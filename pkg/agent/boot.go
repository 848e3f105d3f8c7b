package agent

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// boot holds the addresses of this node's pods that are known before the first snapshot.
// After a boot of the node no rules of an earlier agent isolate pods, so their new
// connections wait for that snapshot.
type boot struct {
	booted bool           // the node has no rules of an earlier agent that knew a pod
	addrs  []netip.Addr   // of sandboxes, kept up to date after the first snapshot
	ranges []netip.Prefix // of the node's pods
}

func (b boot) known() bool { return len(b.addrs)+len(b.ranges) > 0 }

// closeSandboxes is called with the node's sandboxes whenever they change.
func (s *steering) closeSandboxes(found []clusterstate.Sandbox) {
	var addrs []netip.Addr
	for _, f := range found {
		addrs = append(addrs, f.Addrs...)
	}
	s.closePods(func(b *boot) { b.addrs = addrs })
}

// closeRanges is called with the node's pod ranges once the API server has reported them.
func (s *steering) closeRanges(ranges []netip.Prefix) {
	s.closePods(func(b *boot) { b.ranges = ranges })
}

func (s *steering) closePods(learn func(*boot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.known()
	learn(&s.boot)
	if !s.booted || s.snapshot != nil {
		return
	}
	if !before && !s.known() {
		return // nothing to close yet, and the saved state must not wait for an empty table to be written
	}
	s.desired = steer.Sets{Ingress: s.addrs, Egress: s.addrs, IngressRanges: s.ranges, EgressRanges: s.ranges}
	s.steerer.Close(s.desired)
}

// exportClosed says whether pods wait for the first snapshot.
func (s *steering) exportClosed(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_boot_closed",
		Help: "1 while new connections of pods wait for the first snapshot, because no earlier agent has left rules.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.booted && s.snapshot == nil {
			return 1
		}
		return 0
	}))
}
