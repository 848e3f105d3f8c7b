package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/cluster/conformance/cluster"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// evaluated is a network without packets: each node has an evaluator, which decides
// what the node's agent would decide.
type evaluated struct {
	evaluator evaluator
	nodes     []*corev1.Node

	mu    sync.RWMutex
	state evaluatedState
}

// evaluator returns the function that decides about packets on a node. toHost is true
// for a packet to the node itself.
type evaluator func(node string, objects cluster.Objects) (allows func(p packet.Packet, toHost bool) bool, err error)

type evaluatedState struct {
	allows map[string]func(p packet.Packet, toHost bool) bool // by node
	pods   map[string]*corev1.Pod                             // by "namespace/name"
	owners map[netip.Addr]*corev1.Pod
}

func newEvaluated(evaluator evaluator) *evaluated {
	e := &evaluated{evaluator: evaluator}
	for i := range 2 {
		e.nodes = append(e.nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i+1), Labels: map[string]string{corev1.LabelOSStable: "linux"}},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i+1), fmt.Sprintf("fd00:10:244:%d::/64", i+1)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.18.0.%d", i+1)},
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00:172:18::%d", i+1)},
			}},
		})
	}
	return e
}

// compiled decides by the snapshot that the node's agent would have. A finding is an
// error: all policies of the suites can be enforced.
func compiled(snapshotOf func(clusterstate.Input) *policy.Snapshot) evaluator {
	return func(node string, objects cluster.Objects) (func(packet.Packet, bool) bool, error) {
		snapshot := snapshotOf(clusterstate.Input{
			NodeName: node, Features: compile.AllFeatures(),
			Namespaces: objects.Namespaces, Pods: objects.Pods, Nodes: objects.Nodes, Policies: objects.Policies,
		})
		if findings := snapshot.Findings(); len(findings) > 0 {
			return nil, fmt.Errorf("cannot be enforced: %v", findings)
		}
		return func(p packet.Packet, toHost bool) bool {
			return snapshot.Evaluate(policy.Query{Packet: p, ToHost: toHost}).Allowed()
		}, nil
	}
}

// byOracle decides as tests/model/oracle does, which shares no code with the agent.
func byOracle(node string, objects cluster.Objects) (func(packet.Packet, bool) bool, error) {
	known := oracle.Cluster{
		Namespaces: objects.Namespaces, Pods: objects.Pods, Nodes: objects.Nodes,
		EndPort: true, SCTP: true, NodePeers: true, DomainNames: true,
	}
	for _, p := range objects.Policies {
		known.Add(p)
	}
	return func(p packet.Packet, toHost bool) bool {
		return oracle.Evaluate(known, node, oracle.Query{Packet: p, ToHost: toHost}).Allowed()
	}, nil
}

// Nodes implements cluster.Network.
func (e *evaluated) Nodes() []*corev1.Node { return e.nodes }

// Apply implements cluster.Network.
func (e *evaluated) Apply(_ context.Context, objects cluster.Objects) (err error) {
	s := evaluatedState{
		allows: make(map[string]func(packet.Packet, bool) bool),
		pods:   make(map[string]*corev1.Pod),
		owners: make(map[netip.Addr]*corev1.Pod),
	}
	for _, node := range e.nodes {
		if s.allows[node.Name], err = e.evaluator(node.Name, objects); err != nil {
			return err
		}
	}
	for _, pod := range objects.Pods {
		s.pods[netpol.PodName(pod)] = pod
		for _, addr := range compile.Addresses(pod) {
			s.owners[addr] = pod
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state = s
	return nil
}

// protocols are those that suites try.
var protocols = map[corev1.Protocol]packet.Proto{
	corev1.ProtocolTCP: packet.TCP, corev1.ProtocolUDP: packet.UDP, corev1.ProtocolSCTP: packet.SCTP,
}

// clientPort is one of those that clients are given.
const clientPort = 40000

// Connect implements cluster.Network. Silence takes no time.
func (e *evaluated) Connect(_ context.Context, a cluster.Attempt) (netpol.Outcome, error) {
	e.mu.RLock()
	s := e.state
	e.mu.RUnlock()
	from, to, proto := s.pods[a.From], s.owners[a.To.Addr()], protocols[a.Protocol]
	switch {
	case from == nil || from.Spec.HostNetwork:
		return netpol.Unobservable, fmt.Errorf("%s has no network of its own", a.From)
	case to == nil:
		return netpol.Unobservable, fmt.Errorf("no pod is at %s", a.To.Addr())
	case proto == packet.Unknown:
		return netpol.Unobservable, fmt.Errorf("protocol %q", a.Protocol)
	}
	addrs := compile.Addresses(from)
	i := slices.IndexFunc(addrs, func(addr netip.Addr) bool { return addr.Is4() == a.To.Addr().Is4() })
	if i < 0 {
		return netpol.Unobservable, fmt.Errorf("%s has no address to reach %s from", a.From, a.To.Addr())
	}
	p := packet.Packet{Proto: proto, Src: netip.AddrPortFrom(addrs[i], clientPort), Dst: a.To}
	switch {
	case !s.passes(p, from, to):
		return netpol.TimedOut, nil
	case !serves(to, a):
		return netpol.Refused, nil
	}
	return netpol.Connected, nil
}

// passes evaluates the packet on each node whose hooks it passes.
func (s *evaluatedState) passes(p packet.Packet, from, to *corev1.Pod) bool {
	source, destination := from.Spec.NodeName, to.Spec.NodeName
	if !s.allows[source](p, to.Spec.HostNetwork && source == destination) {
		return false
	}
	return to.Spec.HostNetwork || source == destination || s.allows[destination](p, false)
}

func serves(pod *corev1.Pod, a cluster.Attempt) bool {
	return slices.ContainsFunc(cluster.Serving(pod), func(port corev1.ContainerPort) bool {
		return port.Protocol == a.Protocol && port.ContainerPort == int32(a.To.Port())
	})
}

// Close implements network.
func (e *evaluated) Close() error { return nil }
