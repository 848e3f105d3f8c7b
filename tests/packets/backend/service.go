package backend

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// The first addresses of Services and of load balancers, which are assigned in order.
var (
	services  = map[lab.Family]netip.Addr{lab.IPv4: netip.MustParseAddr("10.96.0.1"), lab.IPv6: netip.MustParseAddr("fd00:10:96::1")}
	balancers = map[lab.Family]netip.Addr{lab.IPv4: netip.MustParseAddr("10.97.0.1"), lab.IPv6: netip.MustParseAddr("fd00:10:97::1")}
)

// firstNodePort is the first port of a node that leads to a pod.
const firstNodePort = 30000

// serviceRules implements Services on a node like kube-proxy: an address, or a port of the node, is
// translated to a pod's. A pod that reaches itself this way is masqueraded, and so is what comes
// through a load balancer. The first line creates the table, so that deleting it cannot fail.
const serviceRules = `table inet services {}
delete table inet services
table inet services {
	map ipv4 { type ipv4_addr : ipv4_addr; %s }
	map ipv6 { type ipv6_addr : ipv6_addr; %s }
	map ports4 { type ipv4_addr . inet_service : ipv4_addr . inet_service; %s }
	map ports6 { type ipv6_addr . inet_service : ipv6_addr . inet_service; %s }
	chain translate {
		dnat ip to ip daddr map @ipv4
		dnat ip6 to ip6 daddr map @ipv6
		meta l4proto { tcp, udp } dnat ip to ip daddr . th dport map @ports4
		meta l4proto { tcp, udp } dnat ip6 to ip6 daddr . th dport map @ports6
	}
	chain prerouting {
		type nat hook prerouting priority dstnat
		jump translate
	}
	chain output {
		type nat hook output priority -100
		jump translate
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		ct original ip daddr 10.97.0.0/16 masquerade
		ct original ip6 daddr fd00:10:97::/64 masquerade
		%s
	}
}
`

// destination is where connections to a pod's address go.
type destination struct {
	service, balancer netip.Addr
	node              netip.Addr
	nodePorts         map[int32]uint16 // by the pod's port
}

// of returns the address and port for connections to a port of the pod, by a way that is not direct.
func (d destination) of(via netpol.Via, port int32) netip.AddrPort {
	switch via {
	case netpol.NodePort:
		return netip.AddrPortFrom(d.node, d.nodePorts[port])
	case netpol.LoadBalancer:
		return netip.AddrPortFrom(d.balancer, uint16(port))
	}
	return netip.AddrPortFrom(d.service, uint16(port))
}

// translations are the elements of the maps of one family.
type translations struct {
	addresses []string
	ports     map[*lab.Node][]string // those of a node lead to its own pods
	hairpins  []string
}

// serve gives each pod a Service, a load balancer and ports of its node, for each of its addresses.
func (n *network) serve(ctx context.Context, state *netpol.State) error {
	all := make(map[lab.Family]*translations)
	n.destinations = make(map[netip.Addr]destination)
	for f := range services {
		all[f] = n.translate(state, f)
	}
	for _, node := range n.lab.Nodes {
		ipv4, ipv6 := all[lab.IPv4], all[lab.IPv6]
		hairpins := strings.Join(append(ipv4.hairpins, ipv6.hairpins...), "\n\t\t")
		rules := fmt.Sprintf(serviceRules, set(ipv4.addresses), set(ipv6.addresses), set(ipv4.ports[node]), set(ipv6.ports[node]), hairpins)
		if _, err := node.Run(ctx, rules, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("services: %w", err)
		}
	}
	return nil
}

// translate assigns the addresses and ports of one family, and notes where they lead.
func (n *network) translate(state *netpol.State, f lab.Family) *translations {
	t := &translations{ports: make(map[*lab.Node][]string)}
	service, balancer, port := services[f], balancers[f], uint16(firstNodePort)
	keyword := map[lab.Family]string{lab.IPv4: "ip", lab.IPv6: "ip6"}[f]
	for _, pod := range state.Pods {
		h := n.hosts[netpol.PodName(pod)]
		if h == nil || !h.pod {
			continue
		}
		addr, node := h.Addr(f), n.lab.Node(pod.Spec.NodeName)
		d := destination{service: service, balancer: balancer, node: node.Addr(f), nodePorts: make(map[int32]uint16)}
		t.addresses = append(t.addresses, fmt.Sprintf("%s : %s, %s : %s", service, addr, balancer, addr))
		for _, p := range state.Ports {
			d.nodePorts[p] = port
			t.ports[node] = append(t.ports[node], fmt.Sprintf("%s . %d : %s . %d", d.node, port, addr, p))
			port++
		}
		t.hairpins = append(t.hairpins, fmt.Sprintf("%s saddr %s %s daddr %s masquerade", keyword, addr, keyword, addr))
		n.destinations[addr] = d
		service, balancer = service.Next(), balancer.Next()
	}
	return t
}

func set(elements []string) string {
	if len(elements) == 0 {
		return ""
	}
	return "elements = { " + strings.Join(elements, ", ") + " }"
}

// to returns where a connection to a host goes.
func (n *network) to(h *host, c netpol.Connection) netip.AddrPort {
	addr := h.Addr(families[c.Family])
	if d, ok := n.destinations[addr]; ok && c.Via != netpol.Direct {
		return d.of(c.Via, c.Port)
	}
	return netip.AddrPortFrom(addr, uint16(c.Port))
}

var families = map[corev1.IPFamily]lab.Family{corev1.IPv4Protocol: lab.IPv4, corev1.IPv6Protocol: lab.IPv6}
