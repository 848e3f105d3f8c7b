package backend

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// The networks of Service addresses, which are assigned in order.
var (
	services4 = netip.MustParseAddr("10.96.0.0")
	services6 = netip.MustParseAddr("fd00:10:96::")
)

// serviceRules implements Services on a node like kube-proxy: the address of a Service is
// translated to its pod's, and a pod that reaches itself through its Service is
// masqueraded. The first line creates the table, so that deleting it cannot fail.
const serviceRules = `table inet services {}
delete table inet services
table inet services {
	map ipv4 { type ipv4_addr : ipv4_addr; %s }
	map ipv6 { type ipv6_addr : ipv6_addr; %s }
	chain prerouting {
		type nat hook prerouting priority dstnat
		dnat ip to ip daddr map @ipv4
		dnat ip6 to ip6 daddr map @ipv6
	}
	chain output {
		type nat hook output priority -100
		dnat ip to ip daddr map @ipv4
		dnat ip6 to ip6 daddr map @ipv6
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		%s
	}
}
`

// serve gives each pod a Service for each of its addresses, on every node.
func (n *network) serve(ctx context.Context, state *netpol.State) error {
	next := map[bool]netip.Addr{true: services4, false: services6} // by whether it is IPv4
	elements := make(map[bool][]string)
	var hairpins []string
	services := make(map[netip.Addr]netip.Addr)
	for _, pod := range state.Pods {
		h := n.hosts[netpol.PodName(pod)]
		if h == nil || !h.pod {
			continue
		}
		for _, addr := range h.Addrs {
			next[addr.Is4()] = next[addr.Is4()].Next()
			services[addr] = next[addr.Is4()]
			elements[addr.Is4()] = append(elements[addr.Is4()], fmt.Sprintf("%s : %s", services[addr], addr))
			family := map[bool]string{true: "ip", false: "ip6"}[addr.Is4()]
			hairpins = append(hairpins, fmt.Sprintf("%s saddr %s %s daddr %s masquerade", family, addr, family, addr))
		}
	}
	rules := fmt.Sprintf(serviceRules, set(elements[true]), set(elements[false]), strings.Join(hairpins, "\n\t\t"))
	for _, node := range n.lab.Nodes {
		if _, err := node.Run(ctx, rules, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("services: %w", err)
		}
	}
	n.services = services
	return nil
}

func set(elements []string) string {
	if len(elements) == 0 {
		return ""
	}
	return "elements = { " + strings.Join(elements, ", ") + " }"
}
