package netns

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// filtersBridges is what nftables needs to filter the frames of some bridges.
const filtersBridges = "add table bridge t\nadd chain bridge t c\nadd rule bridge t c meta ibrname cni0 drop\n"

// TestVLANTagZero has a pod send frames with the VLAN tag 0 to another one of its bridge. No
// hook of IP sees them, and the receiver takes them as if they had no tag. A kernel that cannot
// filter them is reported.
func TestVLANTagZero(t *testing.T) {
	c := newCluster(t, 1, "x/bad@1", "y/victim@1")
	labtest.BridgePods(t, c.Cluster)
	node, bad, victim := c.Nodes[0], c.Hosts["x/bad"], c.Hosts["y/victim"]
	var delivered atomic.Int64
	if err := victim.Receive(labtest.ProtoUDP, func([]byte) { delivered.Add(1) }); err != nil {
		t.Fatal(err)
	}
	data := labtest.UDP(4000, 4000, []byte("payload"))
	frames := 0
	send := func() {
		t.Helper()
		frames = 0
		for _, tags := range [][]uint16{{unix.ETH_P_8021Q}, {unix.ETH_P_8021AD}, {unix.ETH_P_8021AD, unix.ETH_P_8021Q}} {
			for _, packet := range [][]byte{
				labtest.IPv4(bad.Addr(lab.IPv4), victim.Addr(lab.IPv4), labtest.ProtoUDP, 0, data),
				labtest.IPv6(bad.Addr(lab.IPv6), victim.Addr(lab.IPv6), labtest.ProtoUDP, data),
			} {
				labtest.SendFrame(t, bad, labtest.HardwareAddr(t, victim), packet, tags...)
				frames++
			}
		}
	}
	send()
	if err := labtest.Within(t, func() bool { return delivered.Load() >= int64(frames) }); err != nil {
		t.Fatalf("without an agent %d of %d frames are delivered", delivered.Load(), frames)
	}

	agent := c.Start(t)[0]
	c.Apply(t, "policies", labtest.Policy("y", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	c.Expect(t, labtest.No("x/bad", "y/victim", "udp/80"))
	if _, err := node.Run(t.Context(), filtersBridges, "nft", "--check", "-f", "-"); err != nil {
		t.Logf("the kernel cannot filter bridges: %v", err)
		failures := func(m lab.Metrics) float64 { return m.Sum("netpol_bridge_filter_errors_total") }
		if labtest.Until(t, agent, 1, failures) == 0 {
			t.Errorf("the kernel cannot filter bridges, and no failure is counted: %v", err)
		}
		return
	}
	if err := labtest.Within(t, func() bool {
		_, err := node.Run(t.Context(), "", "nft", "list", "table", "bridge", "kube-network-policies")
		return err == nil
	}); err != nil {
		t.Fatalf("no table of bridges: %v", err)
	}
	before := delivered.Load()
	send()
	dropped := func(m lab.Metrics) float64 { return m.Sum("netpol_vlan_tag_frames_total") }
	if got := labtest.Until(t, agent, float64(frames), dropped); got != float64(frames) {
		t.Errorf("%v frames were dropped, want %d", got, frames)
	}
	if n := delivered.Load() - before; n != 0 {
		t.Errorf("%d of %d frames were delivered", n, frames)
	}
	c.Expect(t, labtest.Yes("y/victim", "x/bad", "tcp/80"))

	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := node.Run(t.Context(), "", labtest.AgentBinary, "--cleanup"); err != nil {
		t.Fatalf("cleanup: %v: %s", err, out)
	}
	if tables, err := node.Run(t.Context(), "", "nft", "list", "tables"); err != nil || tables != "" {
		t.Errorf("after --cleanup: %v, %s", err, tables)
	}
}
