package attacks

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Options of linux/mroute.h and linux/mroute6.h, which have the same numbers.
const (
	mrtInit   = 200
	mrtAddVIF = 202
	mrtAddMFC = 204
)

var groups = addrs("239.1.1.1", "ff0e::101")

// multicastRouter routes multicasts of a node, like a routing daemon.
type multicastRouter struct {
	node  *lab.Node
	fds   [2]int // of IPv4 and IPv6
	links []int  // by number of the virtual interface
}

// newMulticastRouter begins to route between links of a node.
func newMulticastRouter(t *testing.T, node *lab.Node, links ...string) *multicastRouter {
	t.Helper()
	r := &multicastRouter{node: node}
	err := node.Do(func() (err error) {
		for _, name := range links {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			r.links = append(r.links, link.Index)
		}
		if r.fds[0], err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_IGMP); err != nil {
			return err
		}
		r.fds[1], err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(r.fds[0]); unix.Close(r.fds[1]) })
	one := binary.NativeEndian.AppendUint32(nil, 1)
	r.set(t, 0, mrtInit, one)
	r.set(t, 1, mrtInit, one)
	for i, index := range r.links {
		vif := binary.NativeEndian.AppendUint16(nil, uint16(i)) // struct vifctl
		vif = append(vif, 8, 1, 0, 0, 0, 0)                     // VIFF_USE_IFINDEX, threshold, rate
		vif = append(binary.NativeEndian.AppendUint32(vif, uint32(index)), 0, 0, 0, 0)
		r.set(t, 0, mrtAddVIF, vif)
		mif := append(binary.NativeEndian.AppendUint16(nil, uint16(i)), 0, 1) // struct mif6ctl
		mif = append(binary.NativeEndian.AppendUint16(mif, uint16(index)), 0, 0, 0, 0, 0, 0)
		r.set(t, 1, mrtAddVIF, mif)
	}
	return r
}

func (r *multicastRouter) set(t *testing.T, family, option int, value []byte) {
	t.Helper()
	level := []int{unix.IPPROTO_IP, unix.IPPROTO_IPV6}[family]
	if err := unix.SetsockoptString(r.fds[family], level, option, string(value)); err != nil {
		t.Fatalf("option %d of level %d: %v", option, level, err)
	}
}

// route routes what a source behind the first interface, or the one with the number in, sends to the
// groups to all other interfaces.
func (r *multicastRouter) route(t *testing.T, in int, sources ...netip.Addr) {
	t.Helper()
	for _, src := range sources {
		if src.Is4() {
			mfc := slices.Concat(src.AsSlice(), groups[0].AsSlice()) // struct mfcctl
			mfc = binary.NativeEndian.AppendUint16(mfc, uint16(in))
			for i := range 32 {
				mfc = append(mfc, map[bool]byte{true: 1}[i < len(r.links) && i != in])
			}
			r.set(t, 0, mrtAddMFC, append(mfc, make([]byte, 18)...))
			continue
		}
		var mfc []byte // struct mf6cctl
		for _, a := range []netip.Addr{src, groups[1]} {
			mfc = append(binary.NativeEndian.AppendUint16(mfc, unix.AF_INET6), make([]byte, 6)...)
			mfc = append(append(mfc, a.AsSlice()...), 0, 0, 0, 0)
		}
		mfc = append(binary.NativeEndian.AppendUint16(mfc, uint16(in)), 0, 0)
		mfc = binary.NativeEndian.AppendUint32(mfc, (1<<len(r.links)-1)&^(1<<in))
		r.set(t, 1, mrtAddMFC, append(mfc, make([]byte, 28)...))
	}
}

// linkTo returns the name of the node's link to a host.
func linkTo(t *testing.T, node *lab.Node, host *lab.Host) string {
	t.Helper()
	route, err := node.Run(t.Context(), "", "ip", "-o", "route", "get", host.Addr(lab.IPv4).String())
	if err != nil {
		t.Fatal(err)
	}
	_, dev, _ := strings.Cut(route, "dev ")
	return strings.Fields(dev)[0]
}

// multicast sends packets from each source to the group of its family, and returns their number.
func multicast(t *testing.T, host *lab.Host, sources []netip.Addr) int {
	t.Helper()
	const each = 10
	for _, src := range sources {
		for range each {
			if err := host.SendIP(datagram(src, sameFamily(src, groups))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return each * len(sources)
}

// TestRoutedMulticast: each multicast that the node routes to an isolated pod needs a rule that allows
// it, also if the other receivers are not isolated, and what an isolated pod sends likewise.
func TestRoutedMulticast(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/good@1", "w/open@1", "z/peer@2")
	routeBehind(t, c)
	one, bad, good, free, peer := c.Nodes[0], c.Hosts["x/bad"], c.Hosts["y/good"], c.Hosts["w/open"], c.Hosts["z/peer"]
	// The receivers are before and after each other in the order in which the kernel sends copies.
	router := newMulticastRouter(t, one, linkTo(t, one, free), linkTo(t, one, bad), linkTo(t, one, good), linkTo(t, one, peer))
	router.route(t, 1, slices.Concat(bad.Addrs, behindBad)...)
	router.route(t, 2, good.Addrs...)
	router.route(t, 3, peer.Addrs...)
	other := newMulticastRouter(t, c.Nodes[1], linkTo(t, c.Nodes[1], good), linkTo(t, c.Nodes[1], peer))
	other.route(t, 1, peer.Addrs...)
	testMulticast(t, c, bad, free, map[*lab.Host][]netip.Addr{good: good.Addrs, peer: peer.Addrs}, slices.Concat(bad.Addrs, behindBad))
}

// TestRoutedMulticastToABridge: what the node routes to a bridge is denied if it is denied to any pod
// there.
func TestRoutedMulticastToABridge(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "w/open@1", "z/peer@2")
	labtest.BridgePods(t, c)
	one, two, peer := c.Nodes[0], c.Nodes[1], c.Hosts["z/peer"]
	looseFilter(t, one)
	newMulticastRouter(t, one, linkTo(t, one, peer), "cni0").route(t, 0, peer.Addrs...)
	newMulticastRouter(t, two, linkTo(t, two, peer), linkTo(t, two, c.Hosts["x/bad"])).route(t, 0, peer.Addrs...)
	atBad, atFree := sink(t, c.Hosts["x/bad"]), sink(t, c.Hosts["w/open"])
	arrive := func(what string, want int) {
		t.Helper()
		waitFor(t, func() bool { return atBad.Count() == want && atFree.Count() == want }, func() string {
			return fmt.Sprintf("%s: %d and %d packets arrive, want %d", what, atBad.Count(), atFree.Count(), want)
		})
	}
	want := multicast(t, peer, peer.Addrs)
	arrive("without an agent", want)
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	before, denied := labtest.Denied(labtest.Metrics(t, agent)), float64(want)
	multicast(t, peer, peer.Addrs)
	if got := labtest.Until(t, agent, before+denied, labtest.Denied) - before; got != denied {
		t.Errorf("%v packets are denied, want %v", got, denied)
	}
	arrive("isolated", want)
	c.Enforce(t, agent, "policies", labtest.Policy("x", "allow", `{podSelector: {}, policyTypes: [Ingress], ingress: [{}]}`))
	want += multicast(t, peer, peer.Addrs)
	arrive("allowed", want)
	if n := labtest.Metrics(t, agent).Sum("netpol_pods_without_interface", "cause", "shared"); n != 1 {
		t.Errorf("%v pods share their interface, want 1", n)
	}
}

// testMulticast has receivers of which bad gets isolated, and senders with their sources.
func testMulticast(t *testing.T, c *labtest.Cluster, bad, free *lab.Host, senders map[*lab.Host][]netip.Addr, ofBad []netip.Addr) {
	t.Helper()
	atBad, atFree := sink(t, bad), sink(t, free)
	arrive := func(what string, wantBad, wantFree int) {
		t.Helper()
		waitFor(t, func() bool { return atBad.Count() == wantBad && atFree.Count() == wantFree }, func() string {
			return fmt.Sprintf("%s: %d packets arrive at the isolated pod, want %d, and %d at the other, want %d", what, atBad.Count(), wantBad, atFree.Count(), wantFree)
		})
	}
	send := func() (sent int) {
		for host, sources := range senders {
			sent += multicast(t, host, sources)
		}
		return sent
	}
	toBad, toFree := send(), 0
	toFree = toBad
	arrive("without an agent", toBad, toFree)

	agent := c.Start(t)[0]
	denied := func(packets int, send func() int) (sent int) {
		t.Helper()
		before := labtest.Denied(labtest.Metrics(t, agent))
		sent = send()
		if got := labtest.Until(t, agent, before+float64(packets), labtest.Denied) - before; got != float64(packets) {
			t.Errorf("%v packets are denied, want %d", got, packets)
		}
		return sent
	}
	c.Enforce(t, agent, "policies", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	toFree += denied(toBad, send)
	arrive("isolated", toBad, toFree)

	some := labtest.Policy("x", "some", fmt.Sprintf(`{podSelector: {}, policyTypes: [Ingress],
		ingress: [{from: [{namespaceSelector: {}}], ports: [{protocol: UDP, port: %d}]}]}`, sinkPort))
	c.Enforce(t, agent, "policies", some)
	sent := send()
	toBad, toFree = toBad+sent, toFree+sent
	arrive("allowed", toBad, toFree)

	c.Enforce(t, agent, "policies", some+labtest.Policy("w", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	toBad += denied(sent, send)
	arrive("allowed to one receiver", toBad, toFree)

	c.Enforce(t, agent, "policies", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	toFree += denied(sent, send)
	arrive("isolated again", toBad, toFree)

	toFree += multicast(t, bad, ofBad)
	arrive("what it may send", toBad, toFree)
	c.Enforce(t, agent, "policies", isolateX)
	multicast(t, bad, ofBad)
	sent = send()
	toBad, toFree = toBad+sent, toFree+sent
	arrive("what it may not send", toBad, toFree)
}
