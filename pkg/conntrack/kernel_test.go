package conntrack

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// enterNamespace moves the test to a network namespace that ends with it. It skips
// the test if that is not permitted, unless NETNS_REQUIRED is set.
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
	tbl, err := openKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tbl.close)
	return tbl.(*kernelTable)
}

// insert has the kernel track c.
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

// marks returns the marks of all connections, by first packet.
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

// newReal returns a Blocker over the kernel.
func newReal(t testing.TB) *Blocker {
	t.Helper()
	b, _ := newFake(t)
	b.open, b.nodeAddrs = openKernel, interfaceAddrs
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
	}{{Block, DefaultMark}, {Block, DefaultMark}, {Keep, DefaultMark}, {Unblock, 0}, {Keep, 0}, {Block, DefaultMark}} {
		if err := blocker.pass(testContext(t), always(tt.verdict, &evaluated)); err != nil {
			t.Fatal(err)
		}
		for first, mark := range want {
			want[first] = mark&^DefaultMark | tt.bit
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
		if err := blocker.pass(testContext(t), always(tt.verdict, nil)); err != nil {
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
	if err := k.setMark(e.key, DefaultMark, DefaultMark); !errors.Is(err, unix.ENOENT) {
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
	if err != nil || !addrs.has(netip.MustParseAddr("192.0.2.7")) || addrs.has(netip.MustParseAddr("192.0.2.8")) {
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
	if err := blocker.pass(testContext(t), blockUnlessToHost); err != nil {
		t.Fatal(err)
	}
	want := map[string]uint32{
		"TCP 192.0.2.7:1 -> 10.0.0.2:80":      0,
		"TCP [fd00::2]:1 -> [2001:db8::7]:80": 0,
		"TCP 192.0.2.8:1 -> 10.0.0.2:80":      DefaultMark,
	}
	if got := marks(t, k); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPassEndsWithItsContext(t *testing.T) {
	enterNamespace(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := newReal(t).pass(ctx, always(Block, nil)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want deadline exceeded", err)
	}
}

// BenchmarkPass passes over a table of 20,000 connections, all unchanged.
func BenchmarkPass(b *testing.B) {
	enterNamespace(b)
	k, blocker := realTable(b), newReal(b)
	const count = 20_000
	for i := range count {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 40000)
		insert(b, k, direct(packet.TCP, src.String(), "10.0.0.2:80"))
	}
	for b.Loop() {
		if err := blocker.pass(context.Background(), always(Unblock, nil)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/connection")
}
