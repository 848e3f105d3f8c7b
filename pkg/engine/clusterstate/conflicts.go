package clusterstate

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// ConflictKind tells whose address a status claims.
type ConflictKind string

const (
	// LocalPod is the address of a pod of this node that another pod claims as well.
	LocalPod ConflictKind = "local_pod"
	// OtherPod is the address of a pod of another node that a pod of a third node claims as well, and
	// nothing tells which of them has it.
	OtherPod ConflictKind = "other_pod"
	// PodRange is the address of a pod in its node's range that a pod of another node claims.
	PodRange ConflictKind = "pod_range"
	// OwnRange is an address in a range of this node that a pod of another node claims, and no pod of
	// this node has.
	OwnRange ConflictKind = "own_range"
	// NodeAddress is the address of a Node that a pod of another node claims.
	NodeAddress ConflictKind = "node_address"
	// NodeStatus is an address in the status of a Node that belongs to a pod of this node or is in
	// the pod range of another node.
	NodeStatus ConflictKind = "node_status"
)

// ConflictKinds are all kinds.
var ConflictKinds = []ConflictKind{LocalPod, OtherPod, PodRange, OwnRange, NodeAddress, NodeStatus}

// Conflict is an address in a status that belongs to another pod or node, or may belong to one. The
// claiming pod is not terminating.
type Conflict struct {
	Kind ConflictKind
	Addr netip.Addr
	// Pod, "namespace/name", takes precedence. It may be empty. Node runs the pod or has the
	// address or its range.
	Pod, Node string
	// Other is the pod that claims the address, too. It is empty if OtherNode itself does.
	Other, OtherNode string
}

// conflicts returns the sorted conflicts of pods and nodes.
func (a *addresses) conflicts(nodes map[string]*compile.Node, pod func(netip.Addr) *compile.Pod) []Conflict {
	var all []Conflict
	for addr, claims := range a.contested {
		first := a.first(addr, claims)
		for _, p := range claims {
			if kind := a.conflict(addr, first, p); kind != "" {
				c := Conflict{Kind: kind, Addr: addr, Other: p.Endpoint.String(), OtherNode: p.Node}
				switch kind {
				case NodeAddress:
					c.Node = except(a.homes.hosts[addr], p.Node)
				case OwnRange:
					c.Node = a.node
				default:
					c.Pod, c.Node = first.Endpoint.String(), first.Node
				}
				all = append(all, c)
			}
		}
	}
	for _, n := range nodes {
		for _, addr := range n.Addrs {
			c := Conflict{Kind: NodeStatus, Addr: addr, OtherNode: n.Name}
			if p := pod(addr); p != nil && a.isLocal(p) && p.Node != n.Name {
				c.Pod, c.Node = p.Endpoint.String(), p.Node
				all = append(all, c)
			} else if a.homes.isForeign(n.Name, addr) {
				c.Node = except(a.homes.rangeOf(addr), n.Name)
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(c, o Conflict) int {
		return cmp.Or(c.Addr.Compare(o.Addr), cmp.Compare(c.Kind, o.Kind), cmp.Compare(c.Other, o.Other), cmp.Compare(c.OtherNode, o.OtherNode))
	})
	return all
}

// Uncertain returns the pods of other nodes that have an address in their status that may be another's, by
// name. Rules that select such a pod may not apply to what it sends and receives.
func (c *Cluster) Uncertain() []*policy.Endpoint {
	pods := map[*policy.Endpoint]bool{}
	for addr, claims := range c.addresses.contested {
		for _, p := range claims {
			if c.addresses.isUncertain(addr, p) {
				pods[&p.Endpoint] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(pods), func(p, o *policy.Endpoint) int { return cmp.Compare(p.String(), o.String()) })
}

// isUncertain reports whether addr, which p claims, may be another's. What the routes of this node decide is
// certain.
func (a *addresses) isUncertain(addr netip.Addr, p *compile.Pod) bool {
	if p.Terminating || a.isLocal(p) || a.rank(p, addr) >= byReport {
		return false
	}
	at := a.at(addr)
	if at == nil || at.Dispute == nil {
		return at != &p.Endpoint
	}
	d := at.Dispute
	return len(d.Pods) != 1 || d.Pods[0] != &p.Endpoint || d.NoPod || d.NoHost
}

// conflict returns the kind of conflict between p's claim to addr and that of first, which takes
// precedence. It is empty if there is none.
func (a *addresses) conflict(addr netip.Addr, first, p *compile.Pod) ConflictKind {
	switch {
	case p.Terminating || a.rank(p, addr) >= byReport:
		return ""
	case a.isLocal(first) && (p == first || first.Terminating):
		return ""
	case a.isLocal(first):
		return LocalPod
	case a.isLocal(p):
		return ""
	}
	return a.conflictElsewhere(addr, first, p)
}

// conflictElsewhere is conflict for pods of other nodes.
func (a *addresses) conflictElsewhere(addr netip.Addr, first, p *compile.Pod) ConflictKind {
	rank, best := a.rank(p, addr), a.rank(first, addr)
	switch {
	case best != atHome && a.homes.hasOtherHost(p.Node, addr):
		return NodeAddress
	case p.Node != first.Node && best < rank && a.homes.hasRange(p.Node, addr):
		return PodRange
	case p.Node != first.Node && !first.Terminating:
		return OtherPod
	case p == first && a.homes.isOwn(addr):
		return OwnRange
	}
	return ""
}

// except returns the first of nodes in alphabetical order other than one, which must exist.
func except(nodes []string, one string) string {
	return slices.Min(slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == one }))
}
