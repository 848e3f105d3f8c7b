package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is a router with the pods of one node behind it.
type Node struct {
	*Host
	// PodCIDRs are the networks of its pods, IPv4 and IPv6.
	PodCIDRs []netip.Prefix

	gateway4 netip.Addr
	last4    netip.Addr // the last assigned address
	last6    netip.Addr
	links    int // number of links created so far
	agents   []*Agent
}

// gateway6 is the node's address on every pod's link.
var gateway6 = netip.MustParseAddr("fe80::1")

func newNode(ctx context.Context, number int) (*Node, error) {
	host, err := newHost(fmt.Sprintf("node-%d", number),
		netip.AddrFrom4([4]byte{172, 18, 0, byte(number)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:172:18::%d", number)))
	if err != nil {
		return nil, err
	}
	cidr4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), 0}), 24)
	cidr6 := netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", number))
	node := &Node{
		Host:     host,
		PodCIDRs: []netip.Prefix{cidr4, cidr6},
		gateway4: cidr4.Addr().Next(),
		last4:    cidr4.Addr().Next(),
		last6:    cidr6.Addr().Next(),
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := host.Set(key, "1"); err != nil {
			host.close()
			return nil, err
		}
	}
	return node, host.ip(ctx, "link set lo up\n")
}

// Object returns the node as an API object.
func (n *Node) Object() *corev1.Node {
	object := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}},
	}
	for _, prefix := range n.PodCIDRs {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, prefix.String())
	}
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	for _, addr := range n.Addrs {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
	}
	return object
}

// addressLines returns ip commands that give dev the node's addresses.
func (n *Node) addressLines(dev string) string {
	var lines strings.Builder
	for _, addr := range n.Addrs {
		bits := 24
		if addr.Is6() {
			bits = 64
		}
		if dev == "lo" {
			bits = addr.BitLen()
		}
		fmt.Fprintf(&lines, "addr add %s dev %s%s\n", netip.PrefixFrom(addr, bits), dev, nodad(addr))
	}
	return lines.String()
}

// podAddrs returns the addresses in a pod's status, or assigns new ones.
func (n *Node) podAddrs(object *corev1.Pod) ([]netip.Addr, error) {
	if len(object.Status.PodIPs) == 0 {
		n.last4, n.last6 = n.last4.Next(), n.last6.Next()
		for _, addr := range []netip.Addr{n.last4, n.last6} {
			object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: addr.String()})
		}
		object.Status.Phase = corev1.PodRunning
	}
	object.Status.PodIP = object.Status.PodIPs[0].IP
	addrs := make([]netip.Addr, 0, len(object.Status.PodIPs))
	for _, ip := range object.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", object.Namespace, object.Name, err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// gateway returns the node's address on every pod's link.
func (n *Node) gateway(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return n.gateway4
	}
	return gateway6
}

// firstLink is the index of a node's first link. It ensures that the two ends of a link
// have different indexes in their namespaces. To the kernel, a link with equal indexes
// looks as if it had no other end, and it may take a second until such a link has a
// carrier.
const firstLink = 100

// attach connects each host to the node by its own link with a route to it. No two hosts
// share a bridge, so all traffic between them is routed.
func (n *Node) attach(ctx context.Context, hosts []*Host) error {
	var lines strings.Builder
	for _, host := range hosts {
		n.links++
		host.uplink, host.link = n, fmt.Sprintf("pod%d", n.links)
		fmt.Fprintf(&lines, "link add %s index %d type veth peer name eth0 netns %s\n", host.link, firstLink+n.links, host.ns.path())
		fmt.Fprintf(&lines, "addr add %s/32 dev %s\naddr add %s/64 dev %s nodad\n",
			n.gateway4, host.link, gateway6, host.link)
		lines.WriteString(linkUp(host.link))
		for _, addr := range host.Addrs {
			fmt.Fprintf(&lines, "route add %s dev %s\n", addr, host.link)
		}
	}
	if err := n.ip(ctx, lines.String()); err != nil {
		return err
	}
	return inParallel(hosts, func(h *Host) error {
		if err := h.configure(ctx); err != nil {
			return err
		}
		return n.waitFor(ctx, h)
	})
}

// Bounds of waitFor.
const (
	linkTimeout = 30 * time.Second
	pingTimeout = 100 * time.Millisecond
)

// waitFor waits until a host answers the node's echo requests. IPv6 works only some time
// after a link is up.
func (n *Node) waitFor(ctx context.Context, host *Host) error {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	for _, addr := range host.Addrs {
		err := Poll(ctx, func() (bool, error) {
			answer, err := n.Probe(ctx, ICMP, netip.AddrPortFrom(addr, 0), pingTimeout)
			return answer.Outcome == Connected, err
		})
		if err != nil {
			return fmt.Errorf("wait for %s (%s) to answer %s: %w", host.Name, addr, n.Name, err)
		}
	}
	return nil
}
