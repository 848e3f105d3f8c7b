package labtest

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// BridgePods puts the pods of the first node on one bridge with its bridge netfilter
// enabled, like the CNI plugins bridge and flannel. They reach each other without the
// node's routes.
func BridgePods(t *testing.T, c *Cluster) {
	t.Helper()
	node := c.Nodes[0]
	for _, key := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := node.Set(key, "1"); err != nil {
			t.Fatalf("load br_netfilter: %v", err)
		}
	}
	run := func(host *lab.Host, script string) {
		t.Helper()
		if _, err := host.Run(t.Context(), script, "bash", "-e"); err != nil {
			t.Fatal(err)
		}
	}
	v4, v6 := node.PodCIDRs[0], node.PodCIDRs[1]
	run(node.Host, fmt.Sprintf(`
		ip link add cni0 type bridge mcast_snooping 0
		ip addr add %s dev cni0
		ip addr add fe80::1/64 dev cni0 nodad
		ip link set cni0 up
		ip route add %s dev cni0
		for link in $(ip -br link show type veth | grep -o '^pod[0-9]*'); do
			ip addr flush dev $link
			ip -6 route flush dev $link
			ip link set $link master cni0
		done`, netip.PrefixFrom(v4.Addr().Next(), v4.Bits()), v6))
	for _, pod := range c.Pods {
		if pod.Object.Spec.NodeName == node.Name {
			run(pod.Host, fmt.Sprintf("ip neigh flush all; ip route add %s dev eth0; ip route add %s dev eth0", v4, v6))
		}
	}
}

// SendFrame sends an IP packet over the host's link to a hardware address.
func SendFrame(t *testing.T, host *lab.Host, to net.HardwareAddr, packet []byte) {
	t.Helper()
	SendEthernet(t, host, to, Tagged(Finished(slices.Clone(packet))))
}

// Tagged returns the contents of a frame with an IP packet behind VLAN tags, beginning with
// the EtherType. Each tag has two words: its type, and its priority and identifier.
func Tagged(packet []byte, tags ...uint16) []byte {
	protocol := uint16(unix.ETH_P_IPV6)
	if packet[0]>>4 == 4 {
		protocol = unix.ETH_P_IP
	}
	return append(Uint16s(append(tags, protocol)...), packet...)
}

// Uint16s encodes numbers in network byte order.
func Uint16s(words ...uint16) (b []byte) {
	for _, w := range words {
		b = binary.BigEndian.AppendUint16(b, w)
	}
	return b
}

// SendEthernet sends a frame over the host's link. Its contents begin with the EtherType.
func SendEthernet(t *testing.T, host *lab.Host, to net.HardwareAddr, contents []byte) {
	t.Helper()
	frame := slices.Concat(to, HardwareAddr(t, host, "eth0"), contents)
	err := host.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// HardwareAddr returns the address of a link of a *lab.Host or *lab.Node. A pod's link is
// eth0.
func HardwareAddr(t *testing.T, machine interface{ Do(func() error) error }, name string) (addr net.HardwareAddr) {
	t.Helper()
	err := machine.Do(func() error {
		link, err := net.InterfaceByName(name)
		if err == nil {
			addr = link.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
