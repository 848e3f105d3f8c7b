package netpol

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Model is the cluster with which a scenario starts, and the traffic that is probed. The
// zero Model has nine pods a, b, c in the namespaces x, y, z, spread over two nodes, and
// probes the ports 80 and 81 by TCP and UDP over IPv4 and IPv6.
//
// Each pod has the labels pod=NAME, each namespace ns=NAME and the one that API servers
// add. Each pod declares its ports with names such as "tcp-80".
type Model struct {
	Namespaces []string
	Pods       []string // in each namespace
	// Nodes is the number of nodes, to which pods are assigned in turn. They are called
	// node-1, node-2 and so on.
	Nodes int
	// HostNetwork adds a host-network pod to each node, called host/node-1 and so on.
	HostNetwork bool
	// Hosts are hosts outside the cluster.
	Hosts []Host

	Ports     []int32
	Protocols []corev1.Protocol
	Families  []corev1.IPFamily
	// Vias are the ways to reach each pod. Hosts and host-network pods have no Service, so
	// connections to them are always direct.
	Vias []Via

	start *State // a loaded cluster; replaces all fields except Families and Vias
}

// withDefaults returns m with defaults for unset fields.
func (m Model) withDefaults() Model {
	if m.start != nil {
		m.Ports, m.Protocols = m.start.Ports, declared(m.start)
	}
	setDefault(&m.Namespaces, "x", "y", "z")
	setDefault(&m.Pods, "a", "b", "c")
	setDefault(&m.Ports, 80, 81)
	setDefault(&m.Protocols, corev1.ProtocolTCP, corev1.ProtocolUDP)
	setDefault(&m.Families, corev1.IPv4Protocol, corev1.IPv6Protocol)
	setDefault(&m.Vias, Direct)
	if m.Nodes == 0 {
		m.Nodes = 2
	}
	return m
}

func setDefault[T any](field *[]T, values ...T) {
	if len(*field) == 0 {
		*field = values
	}
}

// Outside returns a host for Model.Hosts, called outside/client. Its packets enter the
// cluster through node-1. Its addresses are reserved for documentation.
func Outside() Host {
	return Host{
		Name:  "outside/client",
		Node:  nodeName(0),
		Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9")},
	}
}

// State returns the cluster without policies. Pods have no addresses yet.
func (m Model) State() *State {
	if m.start != nil {
		return startState(m.start)
	}
	m = m.withDefaults()
	s := &State{Hosts: m.Hosts, Ports: m.Ports, Vias: m.Vias}
	for _, namespace := range m.Namespaces {
		s.AddNamespace(NewNamespace(namespace, "ns="+namespace))
		for _, name := range m.Pods {
			node := nodeName(len(s.Pods) % m.Nodes)
			s.AddPod(NewPod(namespace, name, node, m.Ports, "pod="+name))
		}
	}
	if m.HostNetwork {
		s.AddNamespace(NewNamespace("host", "ns=host"))
		for i := range m.Nodes {
			pod := NewPod("host", nodeName(i), nodeName(i), m.Ports, "pod=a")
			pod.Spec.HostNetwork = true
			s.AddPod(pod)
		}
	}
	return s
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// Traffic returns the probed kinds of traffic. Each has a table.
func (m Model) Traffic() []Traffic {
	m = m.withDefaults()
	var all []Traffic
	for _, via := range m.Vias {
		for _, family := range m.Families {
			for _, protocol := range m.Protocols {
				all = append(all, ports(m.Ports, Traffic{Protocol: protocol, Family: family, Via: via})...)
			}
		}
	}
	return all
}

// ports returns the traffic to each port. ICMP has no ports.
func ports(numbers []int32, to Traffic) []Traffic {
	if to.Protocol == ICMP {
		return []Traffic{to}
	}
	var all []Traffic
	for _, port := range numbers {
		to.Port = port
		all = append(all, to)
	}
	return all
}

// NewNamespace returns a namespace with labels, given as "key=value", and the label that
// API servers add.
func NewNamespace(name string, labels ...string) *corev1.Namespace {
	namespace := &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	label(&namespace.ObjectMeta, append([]string{corev1.LabelMetadataName + "=" + name}, labels...))
	return namespace
}

// NewPod returns a pod on a node with labels, given as "key=value". It declares the ports
// as "tcp-80", "udp-80", "sctp-80" and so on.
func NewPod(namespace, name, node string, ports []int32, labels ...string) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "server", Image: "server"}}},
	}
	label(&pod.ObjectMeta, labels)
	for _, port := range ports {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
				Name: fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), port), ContainerPort: port, Protocol: protocol,
			})
		}
	}
	return pod
}
