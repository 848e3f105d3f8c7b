package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// enterNamespace moves the test to a new network namespace, which ends with it. If that is not
// permitted, it skips the test, unless NETNS_REQUIRED is set.
func enterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // without unlocking: the thread ends with the test's goroutine
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) && os.Getenv("NETNS_REQUIRED") == "" {
		t.Skip("needs to be root and allowed to make network namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// realTable returns the table of the test's namespace.
func realTable(t testing.TB) *kernelTable {
	t.Helper()
	var sockets sockets
	tbl, err := sockets.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tbl.close()
		sockets.close()
	})
	return tbl.(*kernelTable)
}

// insert makes the kernel track c.
func insert(t testing.TB, k *kernelTable, c connection) {
	t.Helper()
	_, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: msgNew, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
		Data:   c.message(t),
	})
	if err != nil {
		t.Fatalf("track %+v: %v", c, err)
	}
}

// marks returns the marks of all connections by first packet.
func marks(t *testing.T, k *kernelTable) map[string]uint32 {
	t.Helper()
	got := make(map[string]uint32)
	for e, err := range k.entries(filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		p, _ := e.first()
		got[p.String()] = e.mark
	}
	return got
}

// newReal returns a Blocker on the real kernel.
func newReal(t testing.TB) *Blocker {
	t.Helper()
	b, _ := newFake(t)
	b.open, b.nodeAddrs, b.cpuTime = b.sockets.open, interfaceAddrs, threadTime
	t.Cleanup(b.sockets.close)
	return b
}

func TestKernelMarksBlockedConnections(t *testing.T) {
	enterNamespace(t)
	k, blocker := realTable(t), newReal(t)
	if got := marks(t, k); len(got) != 0 {
		t.Fatalf("an empty table: %v", got)
	}
	want := map[string]uint32{}
	for _, tt := range connections {
		insert(t, k, tt.connection)
		want[tt.first] = tt.connection.mark
	}
	if got := marks(t, k); !maps.Equal(got, want) {
		t.Fatalf("before: %v, want %v", got, want)
	}
	var evaluated []string
	for _, tt := range []struct {
		verdict Verdict
		bit     uint32
	}{{Block, testMark}, {Block, testMark}, {Keep, testMark}, {Unblock, 0}, {Keep, 0}, {Block, testMark}} {
		if err := runPass(t, blocker, always(tt.verdict, &evaluated)); err != nil {
			t.Fatal(err)
		}
		for first, mark := range want {
			want[first] = mark&^testMark | tt.bit
		}
		if got := marks(t, k); !maps.Equal(got, want) {
			t.Errorf("after verdict %d: %#x, want %#x", tt.verdict, got, want)
		}
	}
	if len(evaluated) != 6*len(connections) {
		t.Errorf("%d evaluations of %d connections in 6 passes", len(evaluated), len(connections))
	}
}

func TestKernelKeepsOtherBits(t *testing.T) {
	enterNamespace(t)
	k, blocker := realTable(t), newReal(t)
	conn := direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:2")
	conn.mark = otherBits
	insert(t, k, conn)
	for _, tt := range []struct {
		verdict Verdict
		want    uint32
	}{{Block, ^uint32(0)}, {Unblock, otherBits}} {
		if err := runPass(t, blocker, always(tt.verdict, nil)); err != nil {
			t.Fatal(err)
		}
		for first, got := range marks(t, k) {
			if got != tt.want {
				t.Errorf("%s after verdict %d: %#x, want %#x", first, tt.verdict, got, tt.want)
			}
		}
	}
}

func TestKernelSetMarkOfMissingConnection(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	e, _ := decodeEntry(direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:2").message(t))
	if err := changeOne(k, request{key: e.key, mark: testMark, mask: testMark}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v, want ENOENT", err)
	}
	if got := marks(t, k); len(got) != 0 {
		t.Errorf("created %v", got)
	}
}

func TestKernelNodeAddresses(t *testing.T) {
	enterNamespace(t)
	for _, args := range [][]string{
		{"addr", "add", "192.0.2.7/24", "dev", "lo"},
		{"addr", "add", "2001:db8::7/64", "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	addrs, err := interfaceAddrs()
	if err != nil || !addrs.has(netip.MustParseAddr("192.0.2.7")) || addrs.has(netip.MustParseAddr("192.0.2.8")) ||
		!addrs.has(netip.MustParseAddr("192.0.2.255")) || !addrs.has(netip.MustParseAddr("255.255.255.255")) {
		t.Errorf("addresses of the node: %v, %v", addrs, err)
	}
	k, blocker := realTable(t), newReal(t)
	insert(t, k, direct(packet.TCP, "192.0.2.7:1", "10.0.0.2:80"))
	insert(t, k, direct(packet.TCP, "[fd00::2]:1", "[2001:db8::7]:80"))
	insert(t, k, direct(packet.TCP, "192.0.2.8:1", "10.0.0.2:80"))
	blockUnlessToHost := func(_ packet.Packet, toHost bool) Verdict {
		if toHost {
			return Keep
		}
		return Block
	}
	if err := runPass(t, blocker, blockUnlessToHost); err != nil {
		t.Fatal(err)
	}
	want := map[string]uint32{
		"TCP 192.0.2.7:1 -> 10.0.0.2:80":      0,
		"TCP [fd00::2]:1 -> [2001:db8::7]:80": 0,
		"TCP 192.0.2.8:1 -> 10.0.0.2:80":      testMark,
	}
	if got := marks(t, k); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPassEndsWithItsContext(t *testing.T) {
	enterNamespace(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := newReal(t).pass(ctx); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want deadline exceeded", err)
	}
}

// many is the count of a table that is too large to be listed without filters.
func many() (int, error) { return fewEntries + 1, nil }

// A check lists the connections of classes whose verdict changed, of both families and behind a
// Service.
func TestKernelListsWhatTurned(t *testing.T) {
	enterNamespace(t)
	k, blocker := realTable(t), newReal(t)
	blocker.count = many
	deny := func(port uint16) Evaluator {
		return func(p packet.Packet, _ bool) Verdict {
			if p.Dst.Port() == port {
				return Block
			}
			return Unblock
		}
	}
	insert(t, k, direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:80"))
	insert(t, k, direct(packet.TCP, "10.0.0.1:2", "10.0.0.2:81"))
	insert(t, k, direct(packet.TCP, "10.0.0.3:1", "10.0.0.4:80"))
	insert(t, k, direct(packet.UDP, "[fd00::1]:1", "[fd00::2]:80"))
	insert(t, k, direct(packet.UDP, "[fd00::1]:2", "[fd00::2]:81"))
	service := direct(packet.TCP, "10.0.0.5:1", "10.96.0.1:8000")
	service.ends[2] = "10.0.0.2:80"
	insert(t, k, service)
	want := map[string]uint32{}
	for first := range marks(t, k) {
		want[first] = 0
	}
	for _, tt := range []struct {
		name  string
		port  uint16
		of    string
		marks map[string]uint32
	}{
		{"the first", 0, "10.0.0.9", nil},
		{"a server", 80, "10.0.0.2", map[string]uint32{"TCP 10.0.0.1:1 -> 10.0.0.2:80": testMark, "TCP 10.0.0.5:1 -> 10.0.0.2:80": testMark}},
		{"a client, by IPv6", 80, "fd00::1", map[string]uint32{"UDP [fd00::1]:1 -> [fd00::2]:80": testMark}},
		{"the other server", 80, "10.0.0.4", map[string]uint32{"TCP 10.0.0.3:1 -> 10.0.0.4:80": testMark}},
		{"they are allowed", 0, "10.0.0.2", map[string]uint32{"TCP 10.0.0.1:1 -> 10.0.0.2:80": 0, "TCP 10.0.0.5:1 -> 10.0.0.2:80": 0}},
		{"by IPv6, too", 0, "fd00::2", map[string]uint32{"UDP [fd00::1]:1 -> [fd00::2]:80": 0}},
	} { // consecutive steps
		if err := runApply(t, blocker, deny(tt.port), Change{Addrs: []netip.Addr{netip.MustParseAddr(tt.of)}}); err != nil {
			t.Fatal(err)
		}
		maps.Copy(want, tt.marks)
		if got := marks(t, k); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
		// Later listings must not happen in the next step, however slow this machine is.
		blocker.schedule.listings, blocker.schedule.wanted = nil, 0
	}
}

// BenchmarkChange has 20,000 connections, or 260,000 with HARD set, each of a different class and to
// one of 100 pods. A pass lists all. In a quarter of a second of a busy cluster 250 pods change, each
// with a connection here. Either no verdict changes, or one connection is blocked and unblocked. The
// CPU time is that of all threads, including the kernel's.
func BenchmarkChange(b *testing.B) {
	enterNamespace(b)
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		b.Fatal(err)
	}
	defer home.Close()
	k, blocker := realTable(b), newReal(b)
	count := 20_000
	if os.Getenv("HARD") != "" {
		count = 260_000
	}
	clients := make([]netip.Addr, count)
	for i := range clients {
		clients[i] = netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)})
		insert(b, k, direct(packet.TCP, netip.AddrPortFrom(clients[i], 40000).String(), fmt.Sprintf("10.200.0.%d:80", i%100)))
	}
	deny := func(addr netip.Addr) Evaluator {
		return func(p packet.Packet, _ bool) Verdict {
			if p.Src.Addr() == addr {
				return Block
			}
			return Unblock
		}
	}
	if err := runApply(b, blocker, deny(netip.Addr{}), Change{All: true}); err != nil {
		b.Fatal(err)
	}
	next := 0
	pods := func() (addrs []netip.Addr) {
		for range 250 {
			next = (next + 7919) % count
			addrs = append(addrs, clients[next])
		}
		return addrs
	}
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread()
			if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
				b.Fatal(err)
			}
			before := cpuTime(b)
			for b.Loop() {
				blocker.schedule = schedule{} // a pass is made only when asked for
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N)/1000, "cpu-ms/op")
		})
	}
	run("pass", func() error { return runPass(b, blocker, deny(netip.Addr{})) })
	run("none turns", func() error { return runApply(b, blocker, deny(netip.Addr{}), Change{Addrs: pods()}) })
	run("all are evaluated", func() error { return runApply(b, blocker, deny(netip.Addr{}), Change{All: true}) })
	run("one turns and turns back", func() error {
		addrs := pods()
		return errors.Join(runApply(b, blocker, deny(addrs[9]), Change{Addrs: addrs}), runApply(b, blocker, deny(netip.Addr{}), Change{Addrs: addrs}))
	})
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The kernel lists live connections alone.
func TestKernelListsLiveConnections(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	for i, status := range []uint32{statusSeenReply, 0, statusSeenReply | statusAssured} {
		c := direct(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
		c.status = status
		insert(t, k, c)
	}
	for i, f := range []filter{unansweredOnes, assuredOnes} {
		listed := 0
		for e, err := range k.entries(f) {
			listed++
			if want := uint16(2 + i); err != nil || e.original.port != want {
				t.Errorf("%+v lists the source port %d, want %d; %v", f, e.original.port, want, err)
			}
		}
		if listed != 1 {
			t.Errorf("%+v lists %d connections, want one", f, listed)
		}
	}
}
