package reachability

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// disputes are the addresses that several nodes claim, for their pods or themselves (NP-63). Each
// agent knows best about its own pods, so a direction is evaluated as by the node of its pod.
type disputes struct {
	in    clusterstate.Input
	addrs map[netip.Addr]bool
	nodes map[string]bool // that run pods with such an address

	mu    sync.Mutex
	views map[string]*policy.Snapshot // by node
}

func newDisputes(in clusterstate.Input, hosts map[netip.Addr]string) *disputes {
	d := &disputes{in: in, addrs: map[netip.Addr]bool{}, nodes: map[string]bool{}, views: map[string]*policy.Snapshot{}}
	claims := map[netip.Addr]string{} // the node of the first pod
	for _, pod := range in.Pods {
		for _, addr := range ownAddresses(pod) {
			node, claimed := claims[addr]
			if claimed && node != pod.Spec.NodeName || hosts[addr] != "" && hosts[addr] != pod.Spec.NodeName {
				d.addrs[addr] = true
			}
			claims[addr] = pod.Spec.NodeName
		}
	}
	for _, pod := range in.Pods {
		if d.claimedBy(pod) {
			d.nodes[pod.Spec.NodeName] = true
		}
	}
	return d
}

// ownAddresses returns the addresses of a pod with its own network.
func ownAddresses(pod *corev1.Pod) []netip.Addr {
	if pod.Spec.HostNetwork || compile.Ended(pod) {
		return nil
	}
	return compile.Addresses(pod)
}

// has reports whether one of some addresses is in dispute.
func (d *disputes) has(addrs ...netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return d.addrs[a] })
}

func (d *disputes) claimedBy(pod *corev1.Pod) bool { return d.has(ownAddresses(pod)...) }

// view returns what a node enforces, for packets with an address in dispute. The other end may be any
// pod only if the node runs a pod with such an address.
func (d *disputes) view(node string) *policy.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.views[node] == nil {
		in := d.in
		in.AllNodes, in.NodeName, in.Pods = false, cmp.Or(node, "(none)"), nil
		for _, pod := range d.in.Pods {
			switch {
			case node == "" && pod.Spec.NodeName == "": // evaluated as by the node that it will be scheduled to
				pod = pod.DeepCopy()
				pod.Spec.NodeName = in.NodeName
			case pod.Spec.NodeName != node && !d.nodes[node] && !d.claimedBy(pod):
				continue
			}
			in.Pods = append(in.Pods, pod)
		}
		d.views[node] = clusterstate.Compile(in)
	}
	return d.views[node]
}

// viewOf returns the snapshot of the node of an endpoint.
func (c *Cluster) viewOf(e *Endpoint) *policy.Snapshot {
	if e.Kind == External {
		return c.snapshot
	}
	view := c.disputes.view(e.Node)
	if audit := view.Audit(); c.enforced && audit != nil {
		return audit
	}
	return view
}

// podOf returns the pod of an endpoint, nil if it is none with its own network.
func (c *Cluster) podOf(e *Endpoint) *policy.Endpoint {
	addr := e.knownAt(e.first())
	switch {
	case e.Kind != Pod:
		return nil
	case c.disputes.has(addr):
		return c.viewOf(e).Endpoint(addr)
	}
	return c.snapshot.Endpoint(addr)
}

// subjects yields the pods of a snapshot of c, once for each address, and those with an address in
// dispute.
func (c *Cluster) subjects(s *policy.Snapshot) iter.Seq[*policy.Endpoint] {
	return func(yield func(*policy.Endpoint) bool) {
		for _, addr := range s.Local() {
			if !yield(s.Endpoint(addr)) {
				return
			}
		}
		for _, e := range c.disputed {
			if !yield(e) {
				return
			}
		}
	}
}

// decide decides about the packet of q, which src sends to dst.
func (c *Cluster) decide(q policy.Query, src, dst *Endpoint) policy.Decision {
	if !c.disputes.has(q.Packet.Src.Addr(), q.Packet.Dst.Addr()) {
		return c.snapshotFor(&q).Evaluate(q)
	}
	out := c.viewOf(src).EvaluateDirection(policy.Egress, q)
	if q.ToHost || !out.Allowed() {
		return out
	}
	if in := c.viewOf(dst).EvaluateDirection(policy.Ingress, q); in.Reason != policy.NotSelected {
		return in
	}
	return out
}

// traces explains both directions of a packet.
func (c *Cluster) traces(q policy.Query, src, dst *Endpoint) [2]policy.Trace {
	if !c.disputes.has(q.Packet.Src.Addr(), q.Packet.Dst.Addr()) {
		return c.snapshotFor(&q).Explain(q).Directions
	}
	var both [2]policy.Trace
	both[policy.Egress] = c.viewOf(src).Explain(q).Directions[policy.Egress]
	both[policy.Ingress] = c.viewOf(dst).Explain(q).Directions[policy.Ingress]
	return both
}
