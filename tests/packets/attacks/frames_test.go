package attacks

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// hiddenFrames returns frame contents that carry an IP packet past the IP hooks of a
// bridge: with VLAN tags, and in other link-layer protocols.
func hiddenFrames(packet []byte) [][]byte {
	const q, ad = unix.ETH_P_8021Q, unix.ETH_P_8021AD
	length := uint16(len(packet))
	return [][]byte{
		labtest.Tagged(packet, q, 0),
		labtest.Tagged(packet, ad, 0),
		labtest.Tagged(packet, ad, 0, q, 0),
		labtest.Tagged(packet, q, 7<<13), // with a priority
		labtest.Tagged(packet, q, 1),     // the default VLAN of a bridge's ports
		labtest.Tagged(packet, q, 1, q, 0),
		labtest.Tagged(packet, q, 0, q, 1),
		labtest.Tagged(packet, q, 5),
		labtest.Tagged(packet, 0x9100, 0), // a historic type of tag
		append(labtest.Uint16s(unix.ETH_P_PPP_SES, 0x1100, 1, length+2, 0x21), packet...),
		append(labtest.Uint16s(unix.ETH_P_MPLS_UC, 0, 0x1ff), packet...),
		append(labtest.Uint16s(length+8, 0xaaaa, 0x0300, 0, unix.ETH_P_IP), packet...), // LLC and SNAP
		append(labtest.Uint16s(0x88b5), packet...),                                     // EtherType for experiments
	}
}

// bridgeVMs attaches two hosts that are not pods to a bridge of their own.
func bridgeVMs(t *testing.T, c *labtest.Cluster) (vms []*lab.Host) {
	t.Helper()
	for _, n := range []byte{1, 2} {
		vm, err := c.AddHost(t.Context(), c.Nodes[0], fmt.Sprintf("vm-%d", n), netip.AddrFrom4([4]byte{192, 0, 2, n}), netip.AddrFrom16([16]byte{0: 0xfd, 15: n}))
		if err != nil {
			t.Fatal(err)
		}
		vms = append(vms, vm)
	}
	if _, err := c.Nodes[0].Run(t.Context(), `
		ip link add virbr0 up type bridge mcast_snooping 0
		for link in $(ip -br link show type veth nomaster | grep -o '^pod[0-9]*'); do
			ip link set $link master virbr0
		done`, "bash", "-e"); err != nil {
		t.Fatal(err)
	}
	return vms
}

// TestHiddenFramesOnABridge: a pod sends frames that bypass the IP hooks of a bridge, to
// another pod of its bridge and to the node. While a policy selects one of the pods, none
// is delivered. A bridge of other software is left alone.
func TestHiddenFramesOnABridge(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1", "y/victim@1")
	node := c.Nodes[0]
	labtest.BridgePods(t, c)
	vms := bridgeVMs(t, c)
	// A bridge with VLANs removes the tag of its ports' VLAN. Not all kernels support VLANs.
	if _, err := node.Run(t.Context(), "", "ip", "link", "set", "cni0", "type", "bridge", "vlan_filtering", "1"); err != nil {
		t.Logf("the bridge has no VLANs: %v", err)
	}
	bad, victim := c.Hosts["x/bad"], c.Hosts["y/victim"]
	secret := []byte("past every policy")
	capture := func(host *lab.Host) *lab.Capture {
		t.Helper()
		arrived, err := host.Capture(func(packet []byte) bool { return bytes.Contains(packet, secret) })
		if err != nil {
			t.Fatal(err)
		}
		return arrived
	}
	arrived, foreignArrived := capture(victim), capture(vms[1])
	var received atomic.Int64
	if err := victim.Receive(labtest.ProtoUDP, func(_, _ netip.Addr, _ []byte) { received.Add(1) }); err != nil {
		t.Fatal(err)
	}
	send := func(from, to *lab.Host, mac net.HardwareAddr) (sent int) {
		t.Helper()
		data := labtest.UDP(sinkPort, sinkPort, secret)
		for _, packet := range [][]byte{
			labtest.Finished(labtest.IPv4(from.Addr(lab.IPv4), to.Addr(lab.IPv4), labtest.ProtoUDP, 0, data)),
			labtest.IPv6(from.Addr(lab.IPv6), to.Addr(lab.IPv6), labtest.ProtoUDP, data),
		} {
			for _, contents := range hiddenFrames(packet) {
				labtest.SendEthernet(t, from, mac, contents)
				sent++
			}
		}
		return sent
	}
	mac := labtest.HardwareAddr(t, victim, "eth0")
	sent := send(bad, victim, mac)
	// A bridge with VLANs drops frames of any VLAN that is not its ports'.
	waitFor(t, func() bool { return arrived.Count() >= sent/2 && received.Load() >= 8 }, func() string {
		return fmt.Sprintf("without an agent %d of %d frames arrive, and %d are taken for IP packets", arrived.Count(), sent, received.Load())
	})

	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", labtest.Policy("y", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	if err := labtest.Within(t, func() bool {
		table, err := node.Run(t.Context(), "", "nft", "list", "table", "bridge", "netpol-agent")
		return err == nil && strings.Contains(table, "drop") && strings.Contains(table, "pod3")
	}); err != nil {
		t.Fatalf("no table of bridges: %v", err)
	}
	dropped := func(m lab.Metrics) float64 { return m.Sum("netpol_vlan_tag_frames_total") }
	before, delivered := arrived.Count(), received.Load()
	sent = send(bad, victim, mac)
	if got := labtest.Until(t, agent, float64(sent), dropped); got != float64(sent) {
		t.Errorf("%v of %d frames were dropped", got, sent)
	}
	if n, ip := arrived.Count()-before, received.Load()-delivered; n != 0 || ip != 0 {
		t.Errorf("%d of %d frames were delivered, %d as IP packets", n, sent, ip)
	}
	sent += send(bad, node.Host, labtest.HardwareAddr(t, node.Host, "cni0"))
	if got := labtest.Until(t, agent, float64(sent), dropped); got != float64(sent) {
		t.Errorf("%v of %d frames were dropped, those to the node among them", got, sent)
	}

	if n := labtest.Metrics(t, agent).Sum("netpol_bridge_filter_errors_total"); n != 0 {
		t.Errorf("%v failed writes were counted", n)
	}
	sent = send(vms[0], vms[1], labtest.HardwareAddr(t, vms[1], "eth0"))
	waitFor(t, func() bool { return foreignArrived.Count() >= sent }, func() string {
		return fmt.Sprintf("%d of %d frames pass the bridge of other software", foreignArrived.Count(), sent)
	})
	c.Expect(t, labtest.No("x/bad", "y/victim", "udp/80"), labtest.Yes("y/victim", "x/bad", "tcp/80"), labtest.Yes("y/victim", "node-1", "tcp/80"))

	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := node.Run(t.Context(), "", labtest.AgentBinary, "cleanup"); err != nil {
		t.Fatalf("cleanup: %v: %s", err, out)
	}
	if tables, err := node.Run(t.Context(), "", "nft", "list", "tables"); err != nil || tables != "" {
		t.Errorf("after cleanup: %v, %s", err, tables)
	}
}
