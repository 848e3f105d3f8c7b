package clusterstate

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// ConflictKind is whose address a status claims.
type ConflictKind string

const (
	// LocalPod is the address of a pod of this node, which another pod has as well.
	LocalPod ConflictKind = "local_pod"
	// OtherPod is the address of a pod of another node, which a pod of a third one has as well:
	// neither gets it.
	OtherPod ConflictKind = "other_pod"
	// PodRange is an address in the pod range of a node, which a pod of another one has.
	PodRange ConflictKind = "pod_range"
	// NodeAddress is the address of a Node, which a pod of another one has.
	NodeAddress ConflictKind = "node_address"
	// NodeStatus is an address in the status of a Node that is one of a pod of this node, or is
	// in the pod range of another one.
	NodeStatus ConflictKind = "node_status"
)

// ConflictKinds are all kinds.
var ConflictKinds = []ConflictKind{LocalPod, OtherPod, PodRange, NodeAddress, NodeStatus}

// Conflict is an address that a status claims and that is another pod's or node's, as far as
// is known. No pod of it terminates.
type Conflict struct {
	Kind ConflictKind
	Addr netip.Addr
	// Pod, "namespace/name", goes first. It may be empty. Node has the pod, the
	// address or its range.
	Pod, Node string
	// Other, which is empty if it is a Node, claims the address and does not get it.
	Other, OtherNode string
}

// conflicts returns those of pods and nodes, in order.
func (a *addresses) conflicts(nodes map[string]*compile.Node, pod func(netip.Addr) *compile.Pod) []Conflict {
	var all []Conflict
	for addr, claims := range a.contested {
		first := a.first(addr, claims)
		for _, p := range claims {
			if kind := a.conflict(addr, first, p); kind != "" {
				c := Conflict{Kind: kind, Addr: addr, Node: a.homes.nameOf(addr, p.Node), Other: p.Endpoint.String(), OtherNode: p.Node}
				if a.standing(first, addr) != misplaced {
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
				c.Node = a.homes.nameOf(addr, n.Name)
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(c, o Conflict) int {
		return cmp.Or(c.Addr.Compare(o.Addr), cmp.Compare(c.Kind, o.Kind), cmp.Compare(c.Other, o.Other), cmp.Compare(c.OtherNode, o.OtherNode))
	})
	return all
}

// conflict returns the kind of conflict between p's claim to addr and first, which goes before it.
// It is empty if there is none.
func (a *addresses) conflict(addr netip.Addr, first, p *compile.Pod) ConflictKind {
	switch standing := a.standing(p, addr); {
	case p.Terminating || standing == outdated || p.Node == "":
	case p != first && a.isLocal(first) && !first.Terminating:
		return LocalPod
	case standing == misplaced && len(a.homes.rangeOf(addr)) > 0:
		return PodRange
	case standing == misplaced:
		return NodeAddress
	case a.disputes(addr, first, p):
		return OtherPod
	}
	return ""
}

// nameOf returns a node other than one on which addr is at home, empty if there is none.
func (h *homes) nameOf(addr netip.Addr, one string) string {
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
