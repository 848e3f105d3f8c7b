package steer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// node is this process's network namespace with two pods and an external host in other namespaces.
type node struct{ a, b, outside *netns }

// netns is a network namespace with one address of each family.
type netns struct {
	name   string
	v4, v6 netip.Addr
}

// addr is p's address of a family.
func (p *netns) addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return p.v6
	}
	return p.v4
}

// theNode is created once, with links that carry packets from the start. The kernel may take a second to
// notice that a link is up, and two more for duplicate address detection of the link-local address that
// it generates. It needs that address to resolve the gateway for packets with an address of another
// link, and a packet waits for the resolution for only three seconds. So pods have a link-local address
// without duplicate address detection.
var theNode = sync.OnceValues(func() (*node, error) {
	n := &node{
		a:       &netns{"steer-a", netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")},
		b:       &netns{"steer-b", netip.MustParseAddr("10.244.2.2"), netip.MustParseAddr("fd00:10:244:2::2")},
		outside: &netns{"steer-outside", netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")},
	}
	script := `set -e
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
`
	for _, p := range []*netns{n.a, n.b, n.outside} {
		gw4, gw6 := p.v4.Prev(), p.v6.Prev()
		script += strings.NewReplacer("NS", p.name, "GW4", gw4.String(), "GW6", gw6.String(),
			"IP4", p.v4.String(), "IP6", p.v6.String()).Replace(`
ip netns add NS
ip link add NS type veth peer name eth0 netns NS
ip addr add GW4/24 dev NS
ip addr add GW6/64 dev NS nodad
ip link set NS up
ip -n NS link set lo up
ip -n NS addr add IP4/24 dev eth0
ip -n NS addr add IP6/64 dev eth0 nodad
ip -n NS addr add fe80::2/64 dev eth0 nodad
ip -n NS link set eth0 up
ip -n NS route add default via GW4
ip -n NS -6 route add default via GW6
`)
	}
	for _, p := range []*netns{n.a, n.b, n.outside} {
		script += fmt.Sprintf("timeout %v bash -c 'until ip link show %s | grep -q \"state UP\"; do sleep 0.01; done'\n", patience.Seconds(), p.name)
	}
	return n, shell(script)
})

// newNode returns the node when packets can pass, without our table and without tracked connections: a
// reused port would belong to a known connection.
func newNode(t *testing.T) *node {
	t.Helper()
	needKernel(t)
	n, err := theNode()
	if err != nil {
		t.Fatal(err)
	}
	removeTables := func() {
		if err := shell("nft flush ruleset"); err != nil {
			t.Error(err)
		}
	}
	removeTables()
	t.Cleanup(removeTables)
	if err := removeConnections(); err != nil {
		t.Fatal(err)
	}
	return n
}

func removeConnections() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	const deleteConnections = 2 // IPCTNL_MSG_CT_DELETE of linux/netfilter/nfnetlink_conntrack.h
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_CTNETLINK<<8 | deleteConnections,
			Flags: netlink.Request | netlink.Acknowledge,
		},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	return err
}

func shell(script string) error {
	out, err := exec.Command("bash", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func mustShell(t *testing.T, script string) {
	t.Helper()
	if err := shell(script); err != nil {
		t.Fatal(err)
	}
}

// do runs f in p's network namespace; sockets that f opens stay in it. A nil p stands for the node.
func (p *netns) do(f func() error) error {
	if p == nil {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		ns, err := os.Open("/run/netns/" + p.name)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// receive returns a socket in p that listens on port.
func (p *netns) receive(t *testing.T, ipv6 bool, port uint16) *net.UDPConn {
	t.Helper()
	return p.receiveAt(t, netip.AddrPortFrom(p.addr(ipv6), port))
}

// receiveAt is like receive for another address.
func (p *netns) receiveAt(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	if err := p.do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// send returns a socket in p that sends to dst.
func (p *netns) send(t *testing.T, dst netip.AddrPort) net.Conn {
	t.Helper()
	var conn net.Conn
	if err := p.do(func() (err error) {
		conn, err = net.Dial("udp", dst.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// patience bounds every wait in these tests. It is enough for an emulated machine.
const patience = 20 * time.Second

// hear returns the next datagram and its source.
func hear(t *testing.T, conn *net.UDPConn) (string, netip.Addr) {
	t.Helper()
	buf := make([]byte, 100)
	conn.SetReadDeadline(time.Now().Add(patience))
	n, src, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n]), src.Addr().Unmap()
}

// hearAll sends every datagram to a channel until the socket is closed.
func hearAll(conn *net.UDPConn, to chan<- string) {
	buf := make([]byte, 100)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		to <- string(buf[:n])
	}
}

func next(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case text := <-from:
		return text
	case <-time.After(patience):
		t.Fatal("no datagram arrived")
		panic("not reached")
	}
}

// listener collects the packets of a queue, which wait until the test answers.
type listener struct {
	nfq     *nfqueue.Nfqueue
	packets chan nfqueue.Attribute
}

// listen opens the agent's queue.
func listen(t *testing.T) *listener { return listenTo(t, 100) }

func listenTo(t *testing.T, queue uint16) *listener {
	t.Helper()
	nfq, err := nfqueue.Open(&nfqueue.Config{
		NfQueue: queue, MaxQueueLen: 1000, MaxPacketLen: 2048, Copymode: nfqueue.NfQnlCopyPacket,
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{nfq: nfq, packets: make(chan nfqueue.Attribute, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	err = nfq.RegisterWithErrorFunc(ctx, func(a nfqueue.Attribute) int {
		l.packets <- a
		return 0
	}, func(err error) int {
		if ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("queue: %v", err)
		}
		return 0
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := nfq.Close(); err != nil {
			t.Errorf("close the queue: %v", err)
		}
	})
	return l
}

// next returns the next pending packet.
func (l *listener) next(t *testing.T) nfqueue.Attribute {
	t.Helper()
	select {
	case a := <-l.packets:
		return a
	case <-time.After(patience):
		t.Fatal("no packet was queued")
		panic("not reached")
	}
}

// accept answers like the agent: it sets our bit of the mark and preserves the rest.
func (l *listener) accept(t *testing.T, a nfqueue.Attribute) {
	t.Helper()
	mark := DefaultMark
	if a.Mark != nil {
		mark |= *a.Mark
	}
	if err := l.nfq.SetVerdictWithOption(*a.PacketID, nfqueue.NfAccept, nfqueue.WithMark(mark)); err != nil {
		t.Fatal(err)
	}
}

// letGo answers like the observer: it preserves the mark.
func (l *listener) letGo(t *testing.T, a nfqueue.Attribute) {
	t.Helper()
	if err := l.nfq.SetVerdict(*a.PacketID, nfqueue.NfAccept); err != nil {
		t.Fatal(err)
	}
}

// addrs returns source and destination of a pending packet.
func addrs(a nfqueue.Attribute) (src, dst netip.Addr) {
	p := *a.Payload
	if p[0]>>4 == 4 {
		src, _ = netip.AddrFromSlice(p[12:16])
		dst, _ = netip.AddrFromSlice(p[16:20])
		return src, dst
	}
	src, _ = netip.AddrFromSlice(p[8:24])
	dst, _ = netip.AddrFromSlice(p[24:40])
	return src, dst
}
