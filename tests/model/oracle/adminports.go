package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// adminPortMatches compares one item with a packet to a peer. An unreadable item matches nothing.
// CN-13: numbers are destination ports, in an inclusive range. CN-14: networks, nodes and domain
// names declare no named ports, whoever has the address; only rules that allow may combine them.
// CN-42: in ingress the destination is the subject, which may declare them.
func (c Cluster) adminPortMatches(p adminPort, peer adminPeer, q Query) bool {
	switch {
	case !c.portIsReadable(p):
		return false
	case p.name != nil:
		return peer.namesPorts() && c.declares(*p.name, q)
	}
	number := int32(q.Packet.Dst.Port())
	return protocols[p.protocol] == q.Packet.Proto && p.first <= number && number <= p.last
}

// adminPortMayMatch reports whether a packet with unreadable ports may match the item: some packet
// to that destination would match it (NP-44).
func (c Cluster) adminPortMayMatch(p adminPort, peer adminPeer, q Query) bool {
	if !q.Packet.Proto.Hidden() || !c.portIsReadable(p) {
		return false
	}
	return p.name == nil || peer.namesPorts() && c.declaresAny(*p.name, q)
}

// declaresAny: CN-14, the destination pod declares some port with this name.
func (c Cluster) declaresAny(name string, q Query) bool {
	pod := c.podAt(q.Packet.Dst.Addr())
	return pod != nil && slices.ContainsFunc(containerPorts(pod), func(cp corev1.ContainerPort) bool {
		_, known := protocols[protocolOfContainerPort(cp)]
		return cp.Name == name && known && inPortRange(cp.ContainerPort)
	})
}

// declares: CN-14, the destination pod declares the packet's port with this name, for any protocol.
func (c Cluster) declares(name string, q Query) bool {
	pod := c.podAt(q.Packet.Dst.Addr())
	return pod != nil && slices.ContainsFunc(containerPorts(pod), func(cp corev1.ContainerPort) bool {
		proto, known := protocols[protocolOfContainerPort(cp)]
		return cp.Name == name && known && proto == q.Packet.Proto &&
			inPortRange(cp.ContainerPort) && cp.ContainerPort == int32(q.Packet.Dst.Port())
	})
}
