package compile

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Pod is what policy needs of a pod, a few hundred bytes. What many pods have in
// common, labels and ports above all, they may share. A Pod is immutable once it
// is part of a clusterstate.Cluster.
type Pod struct {
	// Endpoint is the pod as a snapshot has it. The labels of its namespace and
	// its chains are filled in by the Cluster.
	Endpoint policy.Endpoint
	UID      types.UID
	Node     string
	// Addrs are the addresses in the pod's status (NP-52), each once: none if it
	// has no network of its own.
	Addrs []netip.Addr
	// Announced are the addresses of the pod's sandbox, and Outdated those of Addrs that
	// sandboxes contradict (NP-60): the pod had them before. The Cluster fills in both for
	// pods of its node.
	Announced, Outdated []netip.Addr
	// Withheld is set while no address may count as the pod's, because its namespace is
	// not known, filled in by the Cluster.
	Withheld    bool
	Created     int64 // Unix time in seconds
	Terminating bool
	OwnNetwork  bool // the pod is not its node (NP-22) and has not ended (NP-50)
}

// Claims returns the addresses in the pod's status and those of its sandbox, each once.
func (p *Pod) Claims() []netip.Addr {
	claims := p.Addrs
	for _, a := range p.Announced {
		if !slices.Contains(claims, a) {
			claims = append(slices.Clip(claims), a)
		}
	}
	return claims
}

// NewPod reads a pod. It shares p's strings, apart from those of labels.
func NewPod(p *corev1.Pod) *Pod {
	pod := &Pod{
		Endpoint:    policy.Endpoint{Namespace: p.Namespace, Name: p.Name, ID: podID(p), Labels: policy.NewLabels(p.Labels)},
		UID:         p.UID,
		Node:        p.Spec.NodeName,
		Created:     p.CreationTimestamp.Unix(),
		Terminating: p.DeletionTimestamp != nil,
		OwnNetwork:  hasOwnNetwork(p),
	}
	if pod.OwnNetwork {
		pod.Addrs = Addresses(p)
		pod.Endpoint.Ports = namedPorts(p)
	}
	return pod
}

// podID is a hash of what names a pod for good. Manifests may have no UID; a pod
// that replaces another one then needs another name to get another ID.
func podID(p *corev1.Pod) uint32 {
	h := fnv.New32a()
	for _, s := range []string{string(p.UID), p.Namespace, p.Name} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return reserved(h.Sum32())
}

// reserved returns id, or another one if it stands for what is no pod.
func reserved(id uint32) uint32 { return max(id, policy.FirstID) }

// hasOwnNetwork reports whether policy applies to the pod. A host-network pod is its node
// (NP-22, NP-23), and one that has ended has no network, though its addresses
// stay in its status (NP-50).
func hasOwnNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && !Ended(pod)
}

// Ended reports whether the pod has ended: it has no network, whatever addresses
// its status still has (NP-50).
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Addresses returns every address that the pod's status has, as the snapshot
// reads them. The snapshot knows which pod owns them.
func Addresses(pod *corev1.Pod) []netip.Addr {
	var addrs []netip.Addr
	for addr := range podAddrs(pod) {
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return slices.Clip(addrs)
}

// NamedPorts returns the ports that the pod declares with a name, as the
// snapshot reads them.
func NamedPorts(pod *corev1.Pod) []policy.NamedPort { return namedPorts(pod) }

// Equal reports whether two readings of a pod are the same, whatever the Cluster
// fills in.
func (p *Pod) Equal(o *Pod) bool {
	return p.UID == o.UID && p.Node == o.Node && p.Created == o.Created && p.Terminating == o.Terminating && p.OwnNetwork == o.OwnNetwork &&
		slices.Equal(p.Addrs, o.Addrs) &&
		p.Endpoint.Labels.Equal(o.Endpoint.Labels) &&
		slices.Equal(p.Endpoint.Ports, o.Endpoint.Ports)
}

// TakesOver reports whether p owns an address that o also claims, if no more is known of
// the two claims (NP-51): a pod that is not terminating goes before one that is, then the
// younger one, then the one with the smaller UID, namespace or name, so that the order of
// events is irrelevant.
func (p *Pod) TakesOver(o *Pod) bool {
	terminating := func(p *Pod) int {
		if p.Terminating {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(terminating(p), terminating(o)),
		cmp.Compare(o.Created, p.Created),
		cmp.Compare(p.UID, o.UID),
		cmp.Compare(p.Endpoint.Namespace, o.Endpoint.Namespace),
		cmp.Compare(p.Endpoint.Name, o.Endpoint.Name),
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
	return policy.SortPorts(named)
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
