package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// newFakeRemover returns a Remover with an empty table.
func newFakeRemover() (*Remover, *fakeTable) {
	r, f := &Remover{renewed: none, removed: newRemoved(prometheus.NewRegistry()), unfiltered: make(unfiltered)}, &fakeTable{crowd: fewEntries, filtering: map[uint8]filtering{}}
	r.count = f.count
	r.open = func(context.Context) (table, error) {
		f.edit(func() { f.opened++ })
		return f, nil
	}
	return r, f
}

// none is a Renewed without connections.
func none(context.Context) (map[packet.Packet]struct{}, error) { return nil, nil }

func newRealRemover(t *testing.T) *Remover {
	t.Helper()
	r, err := NewRemover(none, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func addrs(texts ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range texts {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

// firsts returns the packets that opened the connections of the table.
func (f *fakeTable) firsts() []string {
	var firsts []string
	for _, e := range f.rows {
		p, _ := e.first()
		firsts = append(firsts, p.String())
	}
	return firsts
}

func TestRemove(t *testing.T) {
	rows := []struct {
		proto    packet.Proto
		src, dst string
	}{
		{packet.TCP, "10.0.0.1:40000", "10.0.0.2:80"},
		{packet.UDP, "10.0.0.2:5000", "10.0.0.3:53"},
		{packet.SCTP, "10.0.0.1:1", "10.0.0.3:2"},
		{packet.TCP, "[fd00::1]:40000", "[fd00::2]:80"},
		{packet.UDP, "[fd00::2]:40000", "[fd00::3]:80"},
		{packet.ICMPv6, "fd00::3", "fd00::1"},
		{packet.ICMP, "10.0.0.3", "10.0.0.4"},
	}
	many := addrs("10.0.0.1", "fd00::1")
	for i := range maxFiltered {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	for name, how := range map[string]filtering{"correct filters": correct, "ignored filters": ignored, "inverted filters": inverted} {
		for _, tt := range []struct {
			name  string
			addrs []netip.Addr
			want  []string // first packets of the remaining connections
		}{
			{"one address", addrs("10.0.0.1"), []string{"UDP 10.0.0.2:5000 -> 10.0.0.3:53", "TCP [fd00::1]:40000 -> [fd00::2]:80",
				"UDP [fd00::2]:40000 -> [fd00::3]:80", "ICMPv6 fd00::3 -> fd00::1", "ICMP 10.0.0.3 -> 10.0.0.4"}},
			{"both families", addrs("fd00::2", "10.0.0.2"), []string{"SCTP 10.0.0.1:1 -> 10.0.0.3:2", "ICMPv6 fd00::3 -> fd00::1", "ICMP 10.0.0.3 -> 10.0.0.4"}},
			{"no connection", addrs("10.0.0.9", "fd00::9"), nil},
			{"many addresses", many, []string{"UDP 10.0.0.2:5000 -> 10.0.0.3:53", "UDP [fd00::2]:40000 -> [fd00::3]:80", "ICMP 10.0.0.3 -> 10.0.0.4"}},
		} {
			t.Run(name+", "+tt.name, func(t *testing.T) {
				r, f := newFakeRemover()
				for _, row := range rows {
					f.add(row.proto, row.src, row.dst)
				}
				want := tt.want
				if want == nil {
					want = f.firsts()
				}
				f.filtering[unix.AF_INET], f.filtering[unix.AF_INET6] = how, how
				for range 2 {
					if err := r.Remove(testContext(t), tt.addrs); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(want, f.firsts()); diff != "" {
						t.Errorf("connections after the removal (-want +got):\n%s", diff)
					}
				}
				if f.opened != f.closed {
					t.Errorf("opened %d times and closed %d times", f.opened, f.closed)
				}
				if got := testutil.ToFloat64(r.removed); got != float64(len(rows)-len(want)) {
					t.Errorf("counted %v removed, want %d", got, len(rows)-len(want))
				}
			})
		}
	}
}

// Connections that were accepted for the present pod stay, in this direction only, and all others go. None is
// removed if it is not known which stay.
func TestRemoveSparesRenewedConnections(t *testing.T) {
	r, f := newFakeRemover()
	for i := range 2 * removalLen {
		f.add(packet.UDP, fmt.Sprintf("10.0.0.1:%d", 1+i), "10.0.0.2:53")
	}
	f.add(packet.TCP, "[fd00::2]:5", "[fd00::1]:80")
	f.add(packet.ICMP, "10.0.0.1", "10.0.0.3")
	unknown := errors.New("not known")
	r.renewed = func(context.Context) (map[packet.Packet]struct{}, error) { return nil, unknown }
	before := len(f.rows)
	if err := r.Remove(testContext(t), addrs("10.0.0.1", "fd00::1")); !errors.Is(err, unknown) || len(f.rows) != before {
		t.Errorf("%v, %d of %d stay", err, len(f.rows), before)
	}
	renewed := make(map[packet.Packet]struct{})
	for p, ends := range map[packet.Proto][][2]string{
		packet.UDP:  {{"10.0.0.1:7", "10.0.0.2:53"}, {"10.0.0.1:8000", "10.0.0.2:53"}, {"10.0.0.2:53", "10.0.0.1:9"}},
		packet.TCP:  {{"[fd00::2]:5", "[fd00::1]:80"}, {"10.0.0.1:10", "10.0.0.2:53"}},
		packet.ICMP: {{"10.0.0.1:0", "10.0.0.3:0"}},
	} {
		for _, e := range ends {
			renewed[packet.Packet{Proto: p, Src: netip.MustParseAddrPort(e[0]), Dst: netip.MustParseAddrPort(e[1])}] = struct{}{}
		}
	}
	r.renewed = func(context.Context) (map[packet.Packet]struct{}, error) { return renewed, nil }
	if err := r.Remove(testContext(t), addrs("10.0.0.1", "fd00::1")); err != nil {
		t.Fatal(err)
	}
	want := []string{"UDP 10.0.0.1:7 -> 10.0.0.2:53", "UDP 10.0.0.1:8000 -> 10.0.0.2:53", "TCP [fd00::2]:5 -> [fd00::1]:80"}
	if diff := cmp.Diff(want, f.firsts()); diff != "" {
		t.Errorf("connections after the removal (-want +got):\n%s", diff)
	}
}

func TestRemoveReportsErrors(t *testing.T) {
	refused := errors.New("not permitted")
	for name, edit := range map[string]func(*Remover, *fakeTable){
		"the table cannot be opened": func(r *Remover, _ *fakeTable) {
			r.open = func(context.Context) (table, error) { return nil, refused }
		},
		"the listing breaks off": func(_ *Remover, f *fakeTable) { f.broken = refused },
		"an entry stays":         func(_ *Remover, f *fakeTable) { f.refused = refused },
	} {
		t.Run(name, func(t *testing.T) {
			r, f := newFakeRemover()
			f.add(packet.TCP, "10.0.0.1:1", "10.0.0.2:2")
			edit(r, f)
			if err := r.Remove(testContext(t), addrs("10.0.0.1")); !errors.Is(err, refused) {
				t.Errorf("got %v, want %v", err, refused)
			}
		})
	}
}

func TestRemoverMetricsLint(t *testing.T) {
	reg := prometheus.NewRegistry()
	newRemoved(reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestKernelRemovesConnectionsOfAddresses(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	for _, gone := range [][]netip.Addr{addrs("10.0.0.1"), addrs("10.0.0.2", "fd00::2"), addrs("fd00::1"), addrs("10.0.0.9"),
		addrs("198.51.100.1"), addrs("10.96.0.1", "203.0.113.1", "fd00:96::1", "2001:db8::7")} {
		var want []string
		for _, tt := range connections {
			insert(t, k, tt.connection)
			e, _ := decodeEntry(tt.connection.message(t))
			if !slices.Contains(gone, e.original.addr) && !slices.Contains(gone, e.reply.addr) {
				want = append(want, tt.first)
			}
		}
		r := newRealRemover(t)
		if err := r.Remove(testContext(t), gone); err != nil {
			t.Fatal(err)
		}
		var got []string
		for first := range marks(t, k) {
			got = append(got, first)
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("connections after the removal of %v (-want +got):\n%s", gone, diff)
		}
		everything := append(addrs("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"), make([]netip.Addr, maxFiltered)...)
		if err := r.Remove(testContext(t), everything); err != nil || len(marks(t, k)) != 0 {
			t.Fatalf("%v; left: %v", err, marks(t, k))
		}
	}
}

func TestKernelKeepsLaterEntryOfATuple(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	conn := direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:2")
	insert(t, k, conn)
	var old key
	for e, err := range k.entries(filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		old = e.key.clone()
	}
	if err := changeOne(k, request{key: old, remove: true}); err != nil {
		t.Fatal(err)
	}
	if err := changeOne(k, request{key: old, remove: true}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("second removal: %v, want ENOENT", err)
	}
	if err := changeOne(k, request{key: key{family: unix.AF_INET}, remove: true}); err == nil {
		t.Error("a key without a tuple is accepted: the kernel would remove all entries")
	}
	other := old.clone()
	other.id = []byte{1, 2, 3, 4}
	insert(t, k, conn)
	if err := changeOne(k, request{key: other, remove: true}); !errors.Is(err, unix.ENOENT) || len(marks(t, k)) != 1 {
		t.Errorf("another entry with the same tuple: %v, want ENOENT; entries %v", err, marks(t, k))
	}
}

// The kernel lists only the IPv4 connections of the address from a long table.
func TestKernelListsOnlyConnectionsOfTheAddress(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	unrelated := 2_000
	if os.Getenv("HARD") != "" {
		unrelated = 260_000
	}
	for i := range unrelated {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(1 + i>>16), byte(i >> 8), byte(i)}), 40000)
		insert(t, k, direct(packet.UDP, src.String(), "10.0.0.2:80"))
	}
	const own = 20
	for i := range own {
		insert(t, k, direct(packet.UDP, fmt.Sprintf("192.0.2.1:%d", 1+i), "10.0.0.7:80"))
	}
	r := newRealRemover(t)
	r.count = many
	if ok, err := r.unfiltered.filters(testContext(t), r.open, netip.MustParseAddr("10.0.0.7"), func() {}); err != nil || !ok {
		if os.Getenv("NETNS_REQUIRED") != "" {
			t.Fatalf("the kernel does not filter connections, although kernels since 5.9 do (%v)", err)
		}
		t.Skip("the kernel does not filter connections")
	}
	of := netip.MustParseAddr("10.0.0.7")
	removal := removal{renewed: func() (map[packet.Packet]struct{}, error) { return nil, nil }, counter: r.removed, ends: map[netip.Addr]struct{}{of: {}}}
	if err := r.remove(testContext(t), &removal, []netip.Addr{of}); err != nil {
		t.Fatal(err)
	}
	if removal.read != own || removal.removed != own {
		t.Errorf("the kernel listed %d of %d connections and %d were removed, want %d and %[4]d", removal.read, unrelated+own, removal.removed, own)
	}
}
