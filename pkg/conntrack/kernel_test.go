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

// enterNamespace moves the test to a network namespace that ends with it. The
// test is skipped where that is not allowed, unless NETNS_REQUIRED is set.
func enterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // for ever: the thread ends with the test's goroutine
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) && os.Getenv("NETNS_REQUIRED") == "" {
		t.Skip("needs to be root and allowed to make network namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// realTable is the table of the test's namespace.
func realTable(t testing.TB) *kernelTable {
	t.Helper()
	tbl, err := openKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tbl.close)
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

// marks are those of all connections, by first packet.
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
	c, _ := newFake(t)
	c.open, c.nodeAddrs = openKernel, interfaceAddrs
	return c
}

func TestKernelMarksWhatIsCut(t *testing.T) {
	enterNamespace(t)
	k, c := realTable(t), newReal(t)
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
	var asked []string
	for _, tt := range []struct {
		verdict Verdict
		bit     uint32
	}{{Block, DefaultMark}, {Block, DefaultMark}, {Keep, DefaultMark}, {Unblock, 0}, {Keep, 0}, {Block, DefaultMark}} {
		if err := c.pass(testContext(t), always(tt.verdict, &asked)); err != nil {
			t.Fatal(err)
		}
		for first, mark := range want {
			want[first] = mark&^DefaultMark | tt.bit
		}
		if got := marks(t, k); !maps.Equal(got, want) {
			t.Errorf("after verdict %d: %#x, want %#x", tt.verdict, got, want)
		}
	}
	if len(asked) != 6*len(connections) {
		t.Errorf("asked %d times about %d connections", len(asked), len(connections))
	}
}

func TestKernelKeepsTheBitsOfOthers(t *testing.T) {
	enterNamespace(t)
	k, c := realTable(t), newReal(t)
	conn := direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:2")
	conn.mark = others
	insert(t, k, conn)
	for _, tt := range []struct {
		verdict Verdict
		want    uint32
	}{{Block, ^uint32(0)}, {Unblock, others}} {
		if err := c.pass(testContext(t), always(tt.verdict, nil)); err != nil {
			t.Fatal(err)
		}
		for first, got := range marks(t, k) {
			if got != tt.want {
				t.Errorf("%s after verdict %d: %#x, want %#x", first, tt.verdict, got, tt.want)
			}
		}
	}
}

func TestKernelKnowsNoSuchConnection(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	e, _ := decodeEntry(direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:2").message(t))
	if err := k.setMark(e.key, DefaultMark, DefaultMark); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v, want ENOENT", err)
	}
	if got := marks(t, k); len(got) != 0 {
		t.Errorf("made %v", got)
	}
}

func TestKernelKnowsTheNode(t *testing.T) {
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
	k, c := realTable(t), newReal(t)
	insert(t, k, direct(packet.TCP, "192.0.2.7:1", "10.0.0.2:80"))
	insert(t, k, direct(packet.TCP, "[fd00::2]:1", "[2001:db8::7]:80"))
	insert(t, k, direct(packet.TCP, "192.0.2.8:1", "10.0.0.2:80"))
	cutUnlessToHost := func(_ packet.Packet, toHost bool) Verdict {
		if toHost {
			return Keep
		}
		return Block
	}
	if err := c.pass(testContext(t), cutUnlessToHost); err != nil {
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

func TestKernelIsLeftWhenTheContextEnds(t *testing.T) {
	enterNamespace(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := newReal(t).pass(ctx, always(Block, nil)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want deadline exceeded", err)
	}
}

// BenchmarkPass passes over a table of 20,000 connections that stay as they are.
func BenchmarkPass(b *testing.B) {
	enterNamespace(b)
	k, c := realTable(b), newReal(b)
	const count = 20_000
	for i := range count {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 40000)
		insert(b, k, direct(packet.TCP, src.String(), "10.0.0.2:80"))
	}
	for b.Loop() {
		if err := c.pass(context.Background(), always(Unblock, nil)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/connection")
}
