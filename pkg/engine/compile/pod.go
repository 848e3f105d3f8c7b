package compile

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Pod is the part of a pod that policies need, a few hundred bytes. Pods may share equal data,
// above all labels and ports. A Pod is immutable once it is part of a clusterstate.Cluster.
type Pod struct {
	// Endpoint is the pod in snapshots. The Cluster fills in the labels of its namespace and its
	// chains.
	Endpoint policy.Endpoint
	UID      types.UID
	Node     string
	// Addrs are the addresses in the pod's status (NP-52) without duplicates, empty unless
	// OwnNetwork.
	Addrs []netip.Addr
	// Announced are the addresses of the pod's sandbox, of a pod of another node only while Addrs is
	// empty. Outdated are the former addresses in Addrs, which sandboxes of this node contradict
	// (NP-60). The Cluster fills in both.
	Announced, Outdated []netip.Addr
	Created             int64 // Unix time in seconds
	Terminating         bool
	OwnNetwork          bool // not a host-network pod (NP-22) and not ended (NP-50)
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

// NewPod reads a pod. It shares p's strings except those of labels.
func NewPod(p *corev1.Pod) *Pod {
	pod := &Pod{
		Endpoint:    policy.Endpoint{Namespace: p.Namespace, Name: p.Name, ID: podID(p), Account: account(p), Labels: policy.NewLabels(p.Labels)},
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

// account returns the name of the pod's service account (CN-43). The API server fills in both fields,
// and "default" if neither is set; manifests may have either or none.
func account(p *corev1.Pod) string {
	return cmp.Or(p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount, "default")
}

// podID hashes the UID, namespace and name. Manifests may have no UID: then a pod that replaces
// another of the same name gets the same ID.
func podID(p *corev1.Pod) uint32 {
	h := fnv.New32a()
	for _, s := range []string{string(p.UID), p.Namespace, p.Name} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return unreserved(h.Sum32())
}

func unreserved(id uint32) uint32 { return max(id, policy.FirstID) }

// hasOwnNetwork reports whether policy applies to the pod. A host-network pod is its node
// (NP-22, NP-23), and one that has ended has no network, though its addresses
// stay in its status (NP-50).
func hasOwnNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && !Ended(pod)
}

// Ended reports whether the pod has ended: it has no network, although its status may still show
// addresses (NP-50).
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Addresses returns every address in the pod's status, as a snapshot reads them. Which pod owns an
// address is known only to the snapshot.
func Addresses(pod *corev1.Pod) []netip.Addr {
	var addrs []netip.Addr
	for addr := range podAddrs(pod) {
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return slices.Clip(addrs)
}

// NamedPorts returns the ports that the pod declares with a name, as a snapshot reads them.
func NamedPorts(pod *corev1.Pod) []policy.NamedPort { return namedPorts(pod) }

// Equal reports whether two pods are equal, ignoring the fields that the Cluster fills in.
func (p *Pod) Equal(o *Pod) bool {
	return p.UID == o.UID && p.Node == o.Node && p.Created == o.Created && p.Terminating == o.Terminating && p.OwnNetwork == o.OwnNetwork &&
		slices.Equal(p.Addrs, o.Addrs) &&
		p.Endpoint.Account == o.Endpoint.Account &&
		p.Endpoint.Labels.Equal(o.Endpoint.Labels) &&
		slices.Equal(p.Endpoint.Ports, o.Endpoint.Ports)
}

// TakesOver reports whether p rather than o owns an address that both claim, if nothing else
// distinguishes the claims (NP-51). A pod that is not terminating takes precedence, then the
// younger one, then the one with the smaller UID, namespace or name, so that the order of events is
// irrelevant.
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

// protocol returns the protocol of a port. A missing one is TCP (NP-10).
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
