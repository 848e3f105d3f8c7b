package clusterstate

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// ConflictKind tells whose address a status claims.
type ConflictKind string

const (
	// LocalPod is the address of a pod of this node that another pod claims as well.
	LocalPod ConflictKind = "local_pod"
	// OtherPod is the address of a pod of another node that a pod of a third node claims as well.
	// Neither pod gets it.
	OtherPod ConflictKind = "other_pod"
	// PodRange is an address in the pod range of a node that a pod of another node claims.
	PodRange ConflictKind = "pod_range"
	// NodeAddress is the address of a Node that a pod of another node claims.
	NodeAddress ConflictKind = "node_address"
	// Outside is an address of a pod outside of all pod ranges, while the pods of all other nodes
	// have addresses in the ranges.
	Outside ConflictKind = "outside"
	// NodeStatus is an address in the status of a Node that belongs to a pod of this node or is in
	// the pod range of another node.
	NodeStatus ConflictKind = "node_status"
)

// ConflictKinds are all kinds.
var ConflictKinds = []ConflictKind{LocalPod, OtherPod, PodRange, NodeAddress, Outside, NodeStatus}

// Conflict is an address in a status that, as far as is known, belongs to another pod or node. The
// claiming pod is not terminating.
type Conflict struct {
	Kind ConflictKind
	Addr netip.Addr
	// Pod, "namespace/name", takes precedence. It may be empty. Node runs the pod or has the
	// address or its range.
	Pod, Node string
	// Other is the pod that claims the address and does not get it. It is empty if OtherNode itself
	// claims it.
	Other, OtherNode string
}

// conflicts returns the sorted conflicts of pods and nodes.
func (a *addresses) conflicts(nodes map[string]*compile.Node, pod func(netip.Addr) *compile.Pod) []Conflict {
	var all []Conflict
	for addr, claims := range a.contested {
		first := a.first(addr, claims)
		for _, p := range claims {
			if kind := a.conflict(addr, first, p); kind != "" {
				c := Conflict{Kind: kind, Addr: addr, Node: a.homes.homeExcept(addr, p.Node), Other: p.Endpoint.String(), OtherNode: p.Node}
				if a.rank(first, addr) != misplaced {
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
			} else if !a.homes.mayBe(n.Name, addr) {
				c.Node = a.homes.homeExcept(addr, n.Name)
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(c, o Conflict) int {
		return cmp.Or(c.Addr.Compare(o.Addr), cmp.Compare(c.Kind, o.Kind), cmp.Compare(c.Other, o.Other), cmp.Compare(c.OtherNode, o.OtherNode))
	})
	return all
}

// conflict returns the kind of conflict between p's claim to addr and that of first, which takes
// precedence. It is empty if there is none.
func (a *addresses) conflict(addr netip.Addr, first, p *compile.Pod) ConflictKind {
	switch rank := a.rank(p, addr); {
	case p.Terminating || rank == outdated || p.Node == "":
	case p != first && a.isLocal(first) && !first.Terminating:
		return LocalPod
	case rank == misplaced && len(a.homes.rangeOf(addr)) > 0:
		return PodRange
	case rank == misplaced && len(a.homes.hosts[addr]) > 0:
		return NodeAddress
	case rank == misplaced:
		return Outside
	case a.disputes(addr, first, p):
		return OtherPod
	}
	return ""
}

// homeExcept returns a node other than one on which addr is at home, empty if there is none.
func (h *homes) homeExcept(addr netip.Addr, one string) string {
	nodes := h.rangeOf(addr)
	if len(nodes) == 0 {
		nodes = slices.Clone(h.hosts[addr])
	}
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == one })
	if len(nodes) == 0 {
		return ""
	}
	return slices.Min(nodes)
}
