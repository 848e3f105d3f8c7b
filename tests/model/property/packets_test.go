package property

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

var (
	addresses4 = addressesOfFamily(func(p addressPlan) (string, []string) {
		return p.pod4, []string{p.node4, p.bridge4}
	}, outside4, "10.1.1.1")
	addresses6 = addressesOfFamily(func(p addressPlan) (string, []string) {
		return p.pod6, []string{p.node6}
	}, outside6, "fd00:1:0:1::1")
)

// outside4 and outside6 belong to no pod or node of the cluster.
const outside4, outside6 = "203.0.113.9", "2001:db8::9"

// addressesOfFamily returns every address that a pod can have, an unused one on each node, those of
// the nodes, and some outside of the cluster.
func addressesOfFamily(family func(addressPlan) (pod string, node []string), more ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, name := range []string{here, there} {
		pod, node := family(plans[name])
		for n := range podsPerNode + 1 {
			addrs = append(addrs, netip.MustParseAddr(fmt.Sprintf(pod, n+1)))
		}
		more = append(more, node...)
	}
	for _, text := range more {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

// question is a packet with the knowledge of its node and of the sending pod.
type question struct {
	packet.Packet
	toHost bool
	names  []string // of the destination, as the pod has learned them
}

// String describes the packet and what is known about it.
func (q question) String() string {
	text := fmt.Sprint(q.Packet)
	if q.toHost {
		text += " to the node"
	}
	if len(q.names) > 0 {
		text += fmt.Sprintf(", known as %v", q.names)
	}
	return text
}

// query returns the question for the evaluator.
func (q question) query() policy.Query {
	return policy.Query{Packet: q.Packet, ToHost: q.toHost, Learned: learned(q)}
}

// oracleQuery returns the question for the oracle.
func (q question) oracleQuery() oracle.Query {
	return oracle.Query{Packet: q.Packet, ToHost: q.toHost, Names: map[netip.Addr][]string{q.Dst.Addr(): q.names}}
}

// learned holds the names of one address for one pod.
type learned question

// Names returns the names for exactly this pod and address.
func (l learned) Names(pod, addr netip.Addr) *policy.Names {
	if len(l.names) == 0 || pod != l.Src.Addr() || addr != l.Dst.Addr() {
		return nil
	}
	return (*policy.Names)(&l.names)
}

// questions returns questions about packets between pairs of addresses of one family: the addresses
// in statuses of pods, and a few more. Few of the packets have no end on node here.
func (g *gen) questions(c oracle.Cluster) []question {
	var questions []question
	for _, family := range [][]netip.Addr{addresses4, addresses6} {
		family = slices.DeleteFunc(slices.Clone(family), func(a netip.Addr) bool {
			return !isShown(c, a) && !g.OneIn(4)
		})
		for _, src := range family {
			for _, dst := range family {
				if isHere(src) || isHere(dst) || g.OneIn(8) {
					questions = append(questions, g.question(src, dst), g.question(src, dst), g.question(src, dst))
				}
			}
		}
	}
	return append(questions, g.specialQuestions()...)
}

// specialQuestions are about packets of pods to every kind of address that names do not match
// (CN-36).
func (g *gen) specialQuestions() []question {
	var questions []question
	for _, src := range slices.Concat(addresses4, addresses6) {
		if !isHere(src) {
			continue
		}
		for _, dst := range special {
			if dst.Is4() == src.Is4() && g.OneIn(4) {
				questions = append(questions, g.question(src, dst))
			}
		}
	}
	return questions
}

// special are addresses that do not stand for a host, and addresses that are translated to such
// addresses or to pods.
var special = func() (addrs []netip.Addr) {
	for _, text := range []string{
		"0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "100.100.100.200",
		"::", "::1", "fe80::1", "ff02::1", "fd00:ec2::254", "64:ff9b::169.254.169.254", "64:ff9b::" + fmt.Sprintf(plans[there].pod4, 1),
		"2002:a9fe:a9fe::1", "64:ff9b::" + outside4,
	} {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}()

// isShown reports whether some pod's status has the address.
func isShown(c oracle.Cluster, a netip.Addr) bool {
	return slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool {
		return p.Status.PodIP == a.String() || slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	})
}

// isHere reports whether an address is in the ranges of node here.
func isHere(a netip.Addr) bool {
	return netip.MustParsePrefix(plans[here].range4).Contains(a) || netip.MustParsePrefix(plans[here].range6).Contains(a)
}

// isNodeHere reports whether an address is one of node here itself.
func isNodeHere(a netip.Addr) bool { return isOfNode(here, a) }

// isNodeThere reports whether an address is one of the other node.
func isNodeThere(a netip.Addr) bool { return isOfNode(there, a) }

func isOfNode(name string, a netip.Addr) bool {
	return slices.Contains([]string{plans[name].node4, plans[name].node6, plans[name].bridge4}, a.String())
}

// isExternal reports whether an address belongs to no node and no pod range.
func isExternal(a netip.Addr) bool {
	return a == netip.MustParseAddr(outside4) || a == netip.MustParseAddr(outside6)
}

func (g *gen) question(src, dst netip.Addr) question {
	q := question{Packet: g.packet(src, dst)}
	// Nodes have addresses that no object shows, and some that they share with other nodes.
	q.toHost = isNodeHere(dst) || (isExternal(dst) || isNodeThere(dst)) && g.OneIn(4)
	if g.OneIn(2) {
		q.names = append(random.List(g, 1, func() string { return random.Pick(g, namesOfAddresses...) }), random.Pick(g, namesOfAddresses...))
	}
	return q
}

func (g *gen) packet(src, dst netip.Addr) packet.Packet {
	p := packet.Packet{
		Proto: random.Pick(g, packet.TCP, packet.TCP, packet.TCP, packet.UDP, packet.UDP, packet.SCTP,
			packet.ICMP, packet.ICMPv6, packet.Unknown, packet.Unknown, 50, 200, 136, 0),
		Src: netip.AddrPortFrom(src, 0),
		Dst: netip.AddrPortFrom(dst, 0),
	}
	if p.Proto.HasPorts() {
		p.Src = netip.AddrPortFrom(src, random.Pick[uint16](g, 40000, 80))
		p.Dst = netip.AddrPortFrom(dst, random.Pick[uint16](g, 80, 80, 80, 81, 53, 8080, 8081, 1, 0, 65535))
	}
	if p.Proto == packet.TCP && src.Is4() && g.OneIn(8) {
		return mapped(p)
	}
	return p
}

// mapped returns a TCP packet as parsed from IPv6 with IPv4-mapped addresses.
func mapped(p packet.Packet) packet.Packet {
	b := make([]byte, 60)
	b[0] = 6 << 4
	binary.BigEndian.PutUint16(b[4:], 20)
	b[6], b[7] = uint8(p.Proto), 64
	src, dst := p.Src.Addr().As16(), p.Dst.Addr().As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	binary.BigEndian.PutUint16(b[40:], p.Src.Port())
	binary.BigEndian.PutUint16(b[42:], p.Dst.Port())
	b[52] = 5 << 4 // the header is five words long
	parsed, err := packet.Parse(b)
	if err != nil {
		panic(err)
	}
	return parsed
}
