package steer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"
)

// needIPVS skips a test if the kernel has no IPVS. NETNS_REQUIRED does not forbid the skip, because
// many kernels are built without it. The kernel of make test-vm has it.
func needIPVS(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ipvsadm"); err != nil {
		t.Skip(err)
	}
	if err := shell("ipvsadm -l"); err != nil {
		t.Skip("the kernel has no IPVS:", err)
	}
}

// In the IPVS mode of kube-proxy the address of a Service is local. IPVS sends the packet out again from
// the input hook, past the forward hook.
func TestIPVSServiceIsQueuedOnceAfterDNAT(t *testing.T) {
	needKernel(t)
	needIPVS(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/vs/conntrack", []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b))
		const port = 4009
		vip, prefix := netip.MustParseAddr("10.96.0.2"), 32
		if ipv6 {
			vip, prefix = netip.MustParseAddr("fd00:10:96::2"), 128
		}
		service, backend := netip.AddrPortFrom(vip, 53), netip.AddrPortFrom(n.b.addr(ipv6), port)
		mustShell(t, fmt.Sprintf(`set -e
ip link add kube-ipvs0 type dummy
ip addr add %v/%d dev kube-ipvs0
ipvsadm -A -u %v -s rr
ipvsadm -a -u %[3]v -r %v -m`, vip, prefix, service, backend))
		t.Cleanup(func() { mustShell(t, "ipvsadm -C; ip link del kube-ipvs0") })

		l := listen(t)
		in := n.b.receive(t, ipv6, port)
		client := n.a.send(t, service)
		say(t, client, "query")
		a := l.next(t)
		if src, dst := addrs(a); src != n.a.addr(ipv6) || dst != n.b.addr(ipv6) {
			t.Errorf("queued %v → %v, want %v → %v", src, dst, n.a.addr(ipv6), n.b.addr(ipv6))
		}
		l.accept(t, a)
		hear(t, in)
		say(t, client, "one way, again")
		hear(t, in)
		if got := counterValue(t, s); got != 1 {
			t.Errorf("steered %d packets, want 1", got)
		}
	})
}

// A pod isolated for egress sends to a Service from its link-local address. The kernel does not forward
// such a source, but IPVS would send the packet like one of the node.
func TestIPVSForwardsNoLinkLocalSources(t *testing.T) {
	needKernel(t)
	needIPVS(t)
	n := newNode(t)
	const port = 4010
	service, backend := netip.MustParseAddrPort("[fd00:10:96::3]:53"), netip.AddrPortFrom(n.b.v6, port)
	mustShell(t, fmt.Sprintf(`set -e
ip link add kube-ipvs0 type dummy
ip addr add %v/128 dev kube-ipvs0
ipvsadm -A -u %v -s rr
ipvsadm -a -u %[2]v -r %[3]v -m`, service.Addr(), service, backend))
	t.Cleanup(func() { mustShell(t, "ipvsadm -C; ip link del kube-ipvs0") })
	in := n.b.receive(t, true, port)
	send := func(text string) {
		if err := n.a.do(func() error {
			from := &net.UDPAddr{IP: net.ParseIP("fe80::2"), Zone: "eth0"}
			conn, err := net.DialUDP("udp6", from, net.UDPAddrFromAddrPort(service))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(text))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}

	send("without policies")
	if text, src := hear(t, in); src.WithZone("") != netip.MustParseAddr("fe80::2") {
		t.Fatalf("%q came from %v", text, src)
	}
	s := newReal(t, nil)
	mustSync(t, s, Sets{Egress: []netip.Addr{n.a.v4, n.a.v6}, Pods: []netip.Addr{n.a.v4, n.a.v6, n.b.v4, n.b.v6}, Since: time.Now()})
	send("denied")

	say(t, n.outside.send(t, backend), "of another client")
	if text, _ := hear(t, in); text != "of another client" {
		t.Errorf("the pod received %q", text)
	}
}
