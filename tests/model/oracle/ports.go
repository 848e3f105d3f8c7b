package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// protocols are those that a policy can name. No other protocol matches a port (NP-40, NP-45). An
// unreadable protocol may be any of them, but must not be allowed because of that (NP-43, NP-44).
var protocols = map[corev1.Protocol]packet.Proto{
	corev1.ProtocolTCP:  packet.TCP,
	corev1.ProtocolUDP:  packet.UDP,
	corev1.ProtocolSCTP: packet.SCTP,
}

// anyPortMatches: NP-8, no ports means every protocol and port. NP-9: one match is enough.
func (c Cluster) anyPortMatches(ports []networkingv1.NetworkPolicyPort, p packet.Packet) bool {
	if len(ports) == 0 {
		return true
	}
	return slices.ContainsFunc(ports, func(port networkingv1.NetworkPolicyPort) bool {
		return c.portMatches(port, p)
	})
}

// portMatches compares one item with the packet's protocol and destination port. A faulty item
// matches nothing. NP-10: an item without a port matches all ports of its protocol.
func (c Cluster) portMatches(port networkingv1.NetworkPolicyPort, p packet.Packet) bool {
	if len(c.portFaults(port)) > 0 || protocols[protocolOf(port)] != p.Proto {
		return false
	}
	switch {
	case port.Port == nil:
		return true
	case port.Port.Type == intstr.String:
		return c.namedPortMatches(protocolOf(port), port.Port.StrVal, p)
	}
	return numberMatches(port, int32(p.Dst.Port()))
}

// protocolOf: NP-10, a missing protocol is TCP.
func protocolOf(port networkingv1.NetworkPolicyPort) corev1.Protocol {
	if port.Protocol == nil {
		return corev1.ProtocolTCP
	}
	return *port.Protocol
}

// numberMatches: NP-25, the destination port as seen at the pod; NP-26, up to endPort inclusive.
func numberMatches(port networkingv1.NetworkPolicyPort, number int32) bool {
	first, last := port.Port.IntVal, port.Port.IntVal
	if port.EndPort != nil {
		last = *port.EndPort
	}
	return first <= number && number <= last
}

// namedPortMatches: NP-27, in both directions the name is looked up in the destination pod. Other
// destinations have no named ports, and invalid port numbers are ignored.
func (c Cluster) namedPortMatches(protocol corev1.Protocol, name string, p packet.Packet) bool {
	pod := c.podAt(p.Dst.Addr())
	return pod != nil && slices.ContainsFunc(containerPorts(pod), func(cp corev1.ContainerPort) bool {
		return cp.Name == name && inPortRange(cp.ContainerPort) &&
			protocolOfContainerPort(cp) == protocol &&
			cp.ContainerPort == int32(p.Dst.Port())
	})
}

// containerPorts: NP-28, the ports of all containers and of sidecars (restartable init containers).
func containerPorts(pod *corev1.Pod) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, c := range pod.Spec.Containers {
		ports = append(ports, c.Ports...)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			ports = append(ports, c.Ports...)
		}
	}
	return ports
}

// protocolOfContainerPort: a missing protocol is TCP, the default of the API server.
func protocolOfContainerPort(cp corev1.ContainerPort) corev1.Protocol {
	if cp.Protocol == "" {
		return corev1.ProtocolTCP
	}
	return cp.Protocol
}
