// Package simulated is an in-process backend: evaluators of the nodes decide about the first packet
// of each connection. It does not involve the kernel and is as fast as the evaluators.
package simulated

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Evaluator returns the function that decides about packets on a node.
type Evaluator func(node string, state *netpol.State, nodes []*corev1.Node) (allows func(Packet) bool)

// Packet is the first packet of a connection, as a node at one end sees it.
type Packet struct {
	packet.Packet
	// ToHost reports whether the packet goes to the node itself.
	ToHost bool
}

// Backend is a cluster of evaluators.
type Backend struct {
	evaluator Evaluator

	mu      sync.RWMutex
	cluster *cluster
}

// New returns a backend without pods. The evaluator is Compiled, Oracle or the like.
func New(evaluator Evaluator) *Backend { return &Backend{evaluator: evaluator} }

// nodes is the number of nodes.
const nodes = 2

// Supports returns everything.
func (b *Backend) Supports() netpol.Support {
	return netpol.Support{
		Protocols: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, netpol.ICMP},
		Families:  []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Features: slices.AppendSeq([]netpol.Feature{
			netpol.Services, netpol.NodePorts, netpol.LoadBalancers, netpol.HostNetwork, netpol.OutsideHosts, netpol.SilentDrops,
			netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies, netpol.ExperimentalFields,
		}, maps.Keys(netpol.Proposals)),
		Nodes:     nodes,
		Immediate: true,
	}
}

// cluster is a state and its evaluators.
type cluster struct {
	state  *netpol.State
	pods   map[string]*corev1.Pod
	allows map[string]func(Packet) bool // by node
}

// Apply assigns addresses to pods and creates new evaluators of the nodes.
func (b *Backend) Apply(_ context.Context, state *netpol.State) error {
	if err := giveAddresses(state); err != nil {
		return err
	}
	objects := nodeObjects()
	c := &cluster{state: state.Clone(), pods: make(map[string]*corev1.Pod), allows: make(map[string]func(Packet) bool)}
	for _, pod := range c.state.Pods {
		if netpol.IsUp(pod) {
			c.pods[netpol.PodName(pod)] = pod
		}
	}
	for _, node := range objects {
		c.allows[node.Name] = b.evaluator(node.Name, c.state, objects)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cluster = c
	return nil
}

// Probe evaluates the connections on the nodes of both ends. A TimedOut result takes no time.
func (b *Backend) Probe(_ context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	b.mu.RLock()
	c := b.cluster
	b.mu.RUnlock()
	outcomes := make([]netpol.Outcome, len(connections))
	for i, connection := range connections {
		outcomes[i] = c.connect(connection)
	}
	return outcomes, nil
}

// Close does nothing.
func (b *Backend) Close() error { return nil }

// connect evaluates the first packet of a connection on the nodes of both ends. Packets
// from a pod to its own address stay in the pod, and packets from a node to its own pods
// are not evaluated.
func (c *cluster) connect(connection netpol.Connection) netpol.Outcome {
	p, err := c.packet(connection)
	if err != nil {
		return netpol.Unobservable
	}
	from, to := c.pods[connection.From], c.pods[connection.To]
	ownNode := from != nil && to != nil && netpol.OwnNode(from, to)
	if from != nil && from == to && connection.Via == netpol.Direct || ownNode && from.Spec.HostNetwork {
		return netpol.Connected
	}
	for _, pod := range []*corev1.Pod{from, to} {
		if pod != nil && !pod.Spec.HostNetwork && !c.allows[pod.Spec.NodeName](Packet{p, ownNode}) {
			return netpol.TimedOut
		}
	}
	return netpol.Connected
}

// sourcePort is an ephemeral port.
const sourcePort = 40000

// packet returns the first packet as policies see it: after DNAT from a Service to the pod.
func (c *cluster) packet(connection netpol.Connection) (packet.Packet, error) {
	src, dst := c.state.Addr(connection.From, connection.Family), c.state.Addr(connection.To, connection.Family)
	if !src.IsValid() || !dst.IsValid() {
		return packet.Packet{}, fmt.Errorf("%s: no %s address at one end", connection, connection.Family)
	}
	proto, err := protocol(connection)
	p := packet.Packet{Proto: proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, 0)}
	if connection.Protocol != netpol.ICMP {
		p.Src, p.Dst = netip.AddrPortFrom(src, sourcePort), netip.AddrPortFrom(dst, uint16(connection.Port))
	}
	return p, err
}

func protocol(connection netpol.Connection) (packet.Proto, error) {
	switch {
	case connection.Protocol == corev1.ProtocolTCP:
		return packet.TCP, nil
	case connection.Protocol == corev1.ProtocolUDP:
		return packet.UDP, nil
	case connection.Protocol == corev1.ProtocolSCTP:
		return packet.SCTP, nil
	case connection.Protocol == netpol.ICMP && connection.Family == corev1.IPv4Protocol:
		return packet.ICMP, nil
	case connection.Protocol == netpol.ICMP:
		return packet.ICMPv6, nil
	}
	return packet.Unknown, fmt.Errorf("%s: unknown protocol", connection)
}

// giveAddresses assigns addresses to the pods of state that have none: those of their node if they
// share its network, otherwise the first free ones in its ranges.
func giveAddresses(state *netpol.State) error {
	objects := nodeObjects()
	used := make(map[string]bool)
	for _, pod := range state.Pods {
		for _, ip := range pod.Status.PodIPs {
			used[ip.IP] = true
		}
	}
	for i, pod := range state.Pods {
		if len(pod.Status.PodIPs) > 0 {
			continue
		}
		n := slices.IndexFunc(objects, func(o *corev1.Node) bool { return o.Name == pod.Spec.NodeName })
		if n < 0 {
			return fmt.Errorf("pod %s: no node %q", netpol.PodName(pod), pod.Spec.NodeName)
		}
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodRunning
		for j, cidr := range objects[n].Spec.PodCIDRs {
			ip := objects[n].Status.Addresses[j].Address
			if !pod.Spec.HostNetwork {
				ip = firstFree(netip.MustParsePrefix(cidr), used)
			}
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
		state.Pods[i] = pod
	}
	return nil
}

// firstFree reserves and returns the first free address of a range. It skips the network address
// and the node's.
func firstFree(cidr netip.Prefix, used map[string]bool) string {
	addr := cidr.Addr().Next().Next()
	for used[addr.String()] {
		addr = addr.Next()
	}
	used[addr.String()] = true
	return addr.String()
}

// nodeObjects returns the nodes as API objects.
func nodeObjects() []*corev1.Node {
	var objects []*corev1.Node
	for i := range nodes {
		node := &corev1.Node{}
		node.Name = fmt.Sprintf("node-%d", i+1)
		node.Labels = map[string]string{corev1.LabelHostname: node.Name}
		node.Spec.PodCIDRs = []string{fmt.Sprintf("10.244.%d.0/24", i+1), fmt.Sprintf("fd00:10:244:%d::/64", i+1)}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.18.0.%d", i+1)},
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00:172:18::%d", i+1)},
		}
		objects = append(objects, node)
	}
	return objects
}
