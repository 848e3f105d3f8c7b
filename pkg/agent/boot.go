package agent

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
)

// closed is what is known of the addresses of this node's pods before the first snapshot.
// On a node that has booted, their new connections wait for it: no rules of an earlier
// agent isolate any pod.
type closed struct {
	addrs  []netip.Addr   // of sandboxes
	ranges []netip.Prefix // of the node's pods
}

func (c closed) known() bool { return len(c.addrs)+len(c.ranges) > 0 }

// closeSandboxes is called with the sandboxes that the node has made, again when there are
// others.
func (a *agent) closeSandboxes(found []clusterstate.Sandbox) {
	var addrs []netip.Addr
	for _, s := range found {
		addrs = append(addrs, s.Addrs...)
	}
	a.mu.Lock()
	a.sandboxed = addrs
	a.mu.Unlock()
	a.closePods(func(c *closed) { c.addrs = addrs })
}

// closeRanges is called with the ranges of the node's pods when the API server has said
// them.
func (a *agent) closeRanges(ranges []netip.Prefix) {
	a.closePods(func(c *closed) { c.ranges = ranges })
}

func (a *agent) closePods(learn func(*closed)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.booted || a.steered != nil {
		return
	}
	before := a.closed.known()
	if learn(&a.closed); !before && !a.closed.known() {
		return // what the saved state knows must not wait for an empty table
	}
	a.steerer.Close(a.closed.addrs, a.closed.ranges)
}

// exportClosed says whether pods wait for the first snapshot.
func (a *agent) exportClosed(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_boot_closed",
		Help: "1 while new connections of this node's pods wait for the first snapshot, because no earlier agent has left rules.",
	}, func() float64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.booted && a.steered == nil {
			return 1
		}
		return 0
	}))
}
