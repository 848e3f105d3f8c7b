package agent

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// boot holds the addresses of this node's pods that are known before the first snapshot.
// After a boot of the node no rules of an earlier agent isolate pods, so their new
// connections wait for that snapshot. So they do while manifests cannot be read, because
// what the earlier agent enforced may be less than what the manifests now say.
type boot struct {
	closable bool           // nothing else decides packets until the first snapshot
	closed   bool           // new connections of pods wait for it
	addrs    []netip.Addr   // of sandboxes, kept up to date after the first snapshot
	ranges   []netip.Prefix // of the node's pods
	recorded []netip.Addr   // of pods that an earlier agent knew
	valid    []netip.Addr   // of pods in valid manifests while others are invalid
}

// pods returns the addresses that are closed.
func (b boot) pods() []netip.Addr { return slices.Concat(b.addrs, b.recorded, b.valid) }

func (b boot) known() bool { return len(b.pods())+len(b.ranges) > 0 }

// closeSandboxes is called with the addresses of the node's sandboxes whenever they change.
func (s *steering) closeSandboxes(addrs []netip.Addr) {
	s.closePods(func(b *boot) { b.addrs = addrs })
}

// closeRanges is called with the node's pod ranges once the API server has reported them.
func (s *steering) closeRanges(ranges []netip.Prefix) {
	s.closePods(func(b *boot) { b.ranges = ranges })
}

// closeIncomplete is called with the pods of the node and their ranges, as far as they are known, while
// objects cannot be read.
func (s *steering) closeIncomplete(addrs []netip.Addr, ranges []netip.Prefix) {
	s.closePods(func(b *boot) { b.closed, b.ranges, b.valid = b.closable, ranges, addrs })
}

func (s *steering) closePods(learn func(*boot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.known()
	learn(&s.boot)
	if !s.closed || s.snapshot != nil {
		return
	}
	if !before && !s.known() {
		return // nothing to close yet, and the saved state must not wait for an empty table to be written
	}
	pods := s.pods()
	s.desired = steer.Sets{Ingress: pods, Egress: pods, IngressRanges: s.ranges, EgressRanges: s.ranges}
	s.steerer.Close(s.desired)
}

// exportClosed says whether pods wait for the first snapshot.
func (s *steering) exportClosed(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_boot_closed",
		Help: "1 while new connections of all pods wait for the first snapshot, because no earlier agent has left rules, or because manifests cannot be read.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed && s.snapshot == nil {
			return 1
		}
		return 0
	}))
}
