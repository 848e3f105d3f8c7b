package compile

import (
	"cmp"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// endpoints are the live pods by address.
type endpoints struct {
	byAddr map[netip.Addr]*policy.Endpoint
	local  []netip.Addr
}

// compileEndpoints decides which pod owns each address and gives the pods of
// local nodes their chains.
func compileEndpoints(pods []*corev1.Pod, namespaces map[string]*corev1.Namespace, local func(node string) bool, chains *chains) endpoints {
	owners := addressOwners(pods)
	e := endpoints{byAddr: make(map[netip.Addr]*policy.Endpoint, len(owners))}
	compiled := make(map[*corev1.Pod]*policy.Endpoint, len(owners))
	for addr, pod := range owners {
		endpoint := compiled[pod]
		if endpoint == nil {
			endpoint = compileEndpoint(pod, namespaces[pod.Namespace])
			if local(pod.Spec.NodeName) {
				endpoint.Ingress = chains.of(pod, policy.Ingress)
				endpoint.Egress = chains.of(pod, policy.Egress)
			}
			compiled[pod] = endpoint
		}
		e.byAddr[addr] = endpoint
		if local(pod.Spec.NodeName) {
			e.local = append(e.local, addr)
		}
	}
	return e
}

func compileEndpoint(pod *corev1.Pod, ns *corev1.Namespace) *policy.Endpoint {
	e := &policy.Endpoint{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		Labels:    pod.Labels,
		Ports:     namedPorts(pod),
	}
	if ns != nil {
		e.NamespaceLabels = ns.Labels
		if e.NamespaceLabels == nil {
			e.NamespaceLabels = labels.Set{} // known, and without labels
		}
	}
	return e
}

// addressOwners finds the pod behind each address. Addresses are reused while
// the API still shows who had them before, so several pods can claim one.
func addressOwners(pods []*corev1.Pod) map[netip.Addr]*corev1.Pod {
	owners := make(map[netip.Addr]*corev1.Pod, len(pods))
	for _, pod := range pods {
		if !hasOwnNetwork(pod) {
			continue
		}
		for addr := range podAddrs(pod) {
			if owner := owners[addr]; owner == nil || takesOver(pod, owner) {
				owners[addr] = pod
			}
		}
	}
	return owners
}

// hasOwnNetwork tells pods that policy is about. A host-network pod is its node
// (NP-22, NP-23), and one that has ended has no network, though its addresses
// stay in its status (NP-50).
func hasOwnNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && !Ended(pod)
}

// takesOver tells whether pod owns an address that owner claims, too (NP-51): a
// pod that is not terminating goes before one that is, then the younger one,
// then the one with the smaller UID, namespace or name, so that the order of
// events is irrelevant.
func takesOver(pod, owner *corev1.Pod) bool {
	terminating := func(p *corev1.Pod) int {
		if p.DeletionTimestamp != nil {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(terminating(pod), terminating(owner)),
		owner.CreationTimestamp.Compare(pod.CreationTimestamp.Time),
		cmp.Compare(pod.UID, owner.UID),
		cmp.Compare(pod.Namespace, owner.Namespace),
		cmp.Compare(pod.Name, owner.Name),
	) < 0
}

// podAddrs yields every address of the pod (NP-52).
func podAddrs(pod *corev1.Pod) func(yield func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for _, ip := range pod.Status.PodIPs {
			if addr, ok := parseAddr(ip.IP); ok && !yield(addr) {
				return
			}
		}
		if len(pod.Status.PodIPs) > 0 {
			return
		}
		if addr, ok := parseAddr(pod.Status.PodIP); ok {
			yield(addr)
		}
	}
}

// namedPorts returns the ports that the pod's containers declare with a name
// (NP-28): those of all regular containers and of sidecars, which are init
// containers that go on running.
func namedPorts(pod *corev1.Pod) []policy.NamedPort {
	var named []policy.NamedPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			proto, ok := protocol(p.Protocol)
			if p.Name != "" && ok && p.ContainerPort > 0 && p.ContainerPort <= maxPort {
				named = append(named, policy.NamedPort{Name: p.Name, Proto: proto, Port: uint16(p.ContainerPort)})
			}
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return named
}

const maxPort = 65535

// protocol returns the protocol of a port; one that is missing is TCP (NP-10).
func protocol(p corev1.Protocol) (packet.Proto, bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return packet.TCP, true
	case corev1.ProtocolUDP:
		return packet.UDP, true
	case corev1.ProtocolSCTP:
		return packet.SCTP, true
	}
	return 0, false
}
