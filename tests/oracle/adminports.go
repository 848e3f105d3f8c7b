package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// adminPortMatches compares one item with a packet to a peer. An item that cannot
// be read matches nothing. CN-13: numbers are those of the destination, from the
// first to the last. CN-14: networks, nodes and domain names have no names for
// ports, whoever is there; only in rules that allow do they meet.
func (c Cluster) adminPortMatches(p adminPort, peer adminPeer, q Query) bool {
	switch {
	case !c.portIsReadable(p):
		return false
	case p.name != nil:
		return peer.arePods() && c.declares(*p.name, q)
	}
	number := int32(q.Packet.Dst.Port())
	return protocols[p.protocol] == q.Packet.Proto && p.first <= number && number <= p.last
}

// adminPortMayMatch tells of a packet whose ports cannot be read whether they may be
// what the item matches: some packet to that destination would match it (NP-44).
func (c Cluster) adminPortMayMatch(p adminPort, peer adminPeer, q Query) bool {
	if !q.Packet.Proto.Hidden() || !c.portIsReadable(p) {
		return false
	}
	return p.name == nil || peer.arePods() && c.declaresAny(*p.name, q)
}

// declaresAny: CN-14, the destination pod calls some port so.
func (c Cluster) declaresAny(name string, q Query) bool {
	pod := c.podAt(q.Packet.Dst.Addr())
	return pod != nil && slices.ContainsFunc(containerPorts(pod), func(cp corev1.ContainerPort) bool {
		_, known := protocols[protocolOfContainerPort(cp)]
		return cp.Name == name && known && inPortRange(cp.ContainerPort)
	})
}

// declares: CN-14, the destination pod calls the packet's port so, with whatever
// protocol.
func (c Cluster) declares(name string, q Query) bool {
	pod := c.podAt(q.Packet.Dst.Addr())
	return pod != nil && slices.ContainsFunc(containerPorts(pod), func(cp corev1.ContainerPort) bool {
		proto, known := protocols[protocolOfContainerPort(cp)]
		return cp.Name == name && known && proto == q.Packet.Proto &&
			inPortRange(cp.ContainerPort) && cp.ContainerPort == int32(q.Packet.Dst.Port())
	})
}
