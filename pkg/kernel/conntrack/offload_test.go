package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Blocking a connection ends its offload, whether or not it was marked before.
func TestPassEndsOffload(t *testing.T) {
	for _, tt := range []struct {
		name      string
		verdict   Verdict
		isBlocked bool
		want      uint32
		offloaded bool
	}{
		{"allowed", Unblock, false, 0, true},
		{"not selected", Unselected, false, 0, true},
		{"unknown", Keep, false, 0, true},
		{"denied", Block, false, testMark, false},
		{"denied, and offloaded since it was blocked", Block, true, testMark, false},
		{"unknown, and offloaded since it was blocked", Keep, true, testMark, false},
		{"allowed again", Unblock, true, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, f := newFake(t)
			e := f.add(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80")
			e.status = statusConfirmed | statusOffloaded
			e.mark = otherBits
			if tt.isBlocked {
				e.mark |= testMark
			}
			if err := runPass(t, b, always(tt.verdict, nil)); err != nil {
				t.Fatal(err)
			}
			if len(f.rows) != 1 || f.rows[0].mark != otherBits&^testMark|tt.want || f.rows[0].offloaded() != tt.offloaded {
				t.Errorf("entries %+v, want one with the bit %#x, offloaded %v", f.rows, tt.want, tt.offloaded)
			}
			ended := 0.0
			if !tt.offloaded {
				ended = 1
			}
			if got := testutil.ToFloat64(b.metrics.blocks(true)); got != ended {
				t.Errorf("%v ended offloads counted, want %v", got, ended)
			}
		})
	}
}

// The offload ends even if a packet from either end opens the connection again before the blocked
// entry is created.
func TestOffloadEndsBesidePackets(t *testing.T) {
	for name, from := range map[string]func(entry) []byte{
		"of the client": func(e entry) []byte { return e.key.tuple },
		"of the server": func(e entry) []byte { return e.replies },
	} {
		for _, faster := range []int{1, replaceAttempts - 1, replaceAttempts} {
			t.Run(name, func(t *testing.T) {
				b, f := newFake(t)
				e := *f.add(packet.UDP, "10.0.0.1:40000", "10.0.0.2:80")
				f.rows[0].status = statusOffloaded
				packets := 0
				f.onChange = func(f *fakeTable) {
					if len(f.rows) == 0 && packets < faster {
						packets++
						f.rows = append(f.rows, entry{key: key{tuple: from(e)}, status: statusOffloaded})
					}
				}
				err := runPass(t, b, always(Block, nil))
				if faster == replaceAttempts {
					if !errors.Is(err, unix.EEXIST) {
						t.Errorf("%d packets were faster: %v, want EEXIST", faster, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if len(f.rows) != 1 || !slices.Equal(f.rows[0].key.tuple, e.key.tuple) || f.rows[0].mark != testMark || f.rows[0].offloaded() {
					t.Errorf("%d packets were faster: entries %+v, want the blocked one", packets, f.rows)
				}
			})
		}
	}
}

// Status bits of NAT: IPS_SRC_NAT and IPS_DST_NAT.
const (
	statusSrcNAT = 1 << 4
	statusDstNAT = 1 << 5
)

// offloaded returns the only entry as if a flowtable forwarded its packets.
func offloaded(t *testing.T, k *kernelTable) entry {
	t.Helper()
	entries := allEntries(t, k)
	if len(entries) != 1 {
		t.Fatalf("entries %+v, want one", entries)
	}
	entries[0].status |= statusOffloaded
	return entries[0]
}

func allEntries(t *testing.T, k *kernelTable) (entries []entry) {
	t.Helper()
	for e, err := range k.entries(filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		e.key, e.replies = e.key.clone(), slices.Clone(e.replies)
		entries = append(entries, e)
	}
	return entries
}

// A replacement has the tuples and the translations of the replaced entry, for each kind of connection
// that flowtables forward.
func TestKernelReplacesEntries(t *testing.T) {
	for _, tt := range []struct {
		connection connection
		nat        uint32
	}{
		{direct(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80"), 0},
		{direct(packet.UDP, "[fd00::1]:40000", "[fd00::2]:80"), 0},
		{connection{proto: packet.TCP, ends: [4]string{"10.0.0.1:40001", "10.96.0.1:443", "10.0.0.2:6443", "10.0.0.1:40001"}}, statusDstNAT},
		{connection{proto: packet.UDP, ends: [4]string{"[fd00::1]:40001", "[fd00:96::1]:53", "[fd00::2]:53", "[fd00::1]:40001"}}, statusDstNAT},
		{connection{proto: packet.TCP, ends: [4]string{"10.0.0.1:40001", "198.51.100.1:53", "198.51.100.1:53", "203.0.113.1:61000"}}, statusSrcNAT},
		{connection{proto: packet.TCP, ends: [4]string{"[fd00::1]:40001", "[fd00:96::1]:80", "[fd00::1]:8080", "[2001:db8::7]:61000"}}, statusSrcNAT | statusDstNAT},
		{connection{proto: packet.UDP, ends: direct(packet.UDP, "10.0.0.1:9", "10.0.0.2:9").ends, zone: 5}, 0},
	} {
		t.Run(fmt.Sprint(tt.connection), func(t *testing.T) {
			enterNamespace(t)
			k := realTable(t)
			tt.connection.mark = 0x1000
			insert(t, k, tt.connection)
			before := offloaded(t, k)
			if err := blockOffloaded(k, *before.change(true).offloaded, testMark); err != nil {
				t.Fatal(err)
			}
			after := allEntries(t, k)
			if len(after) != 1 {
				t.Fatalf("entries %+v, want one", after)
			}
			e := after[0]
			if !slices.Equal(e.key.tuple, before.key.tuple) || !slices.Equal(e.replies, before.replies) || !slices.Equal(e.key.zone, before.key.zone) {
				t.Errorf("got %+v, want the tuples of %+v", e, before)
			}
			if got := e.status & (statusSrcNAT | statusDstNAT); e.mark != 0x1000|testMark || got != tt.nat {
				t.Errorf("mark %#x, translations %#x, want %#x, %#x", e.mark, got, 0x1000|testMark, tt.nat)
			}
		})
	}
}

// A replacement looks picked up if and only if the replaced entry was picked up.
func TestKernelReplacementsKeepTheirDirection(t *testing.T) {
	for _, pickedUp := range []bool{false, true} {
		enterNamespace(t)
		k := realTable(t)
		insert(t, k, direct(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80"))
		before := offloaded(t, k)
		for range 2 {
			before.pickedUp = pickedUp
			if err := blockOffloaded(k, *before.change(true).offloaded, testMark); err != nil {
				t.Fatal(err)
			}
			if before = offloaded(t, k); before.pickedUp != pickedUp {
				t.Errorf("picked up: %v, want %v", before.pickedUp, pickedUp)
			}
		}
	}
}

// faster is a table in which another entry is created before the replacement.
type faster struct {
	*kernelTable
	insert func()
}

func (f *faster) change(requests []request) []error {
	results := f.kernelTable.change(requests)
	if requests[0].remove && f.insert != nil {
		f.insert()
		f.insert = nil
	}
	return results
}

// A packet from either end of a connection behind a Service may open another one before the blocked
// entry is created.
func TestKernelReplacesEntriesBesidePackets(t *testing.T) {
	service := connection{proto: packet.TCP, ends: [4]string{"10.0.0.1:40001", "10.96.0.1:443", "10.0.0.2:6443", "10.0.0.1:40001"}}
	for name, other := range map[string]connection{
		"of the client": service,
		"of the server": direct(packet.TCP, "10.0.0.2:6443", "10.0.0.1:40001"),
	} {
		t.Run(name, func(t *testing.T) {
			enterNamespace(t)
			k := realTable(t)
			insert(t, k, service)
			before := offloaded(t, k)
			racing := &faster{k, func() { insert(t, k, other) }}
			if err := blockOffloaded(racing, *before.change(true).offloaded, testMark); err != nil {
				t.Fatal(err)
			}
			if got := marks(t, k); !maps.Equal(got, map[string]uint32{"TCP 10.0.0.1:40001 -> 10.0.0.2:6443": testMark}) {
				t.Errorf("got %#x, want only the blocked one", got)
			}
		})
	}
}

// Kernels that refuse to delete an offloaded entry drop it when it has expired.
func TestKernelDropsExpiredEntries(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	insert(t, k, direct(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80"))
	if err := k.expire(offloaded(t, k).key); err != nil {
		t.Fatal(err)
	}
	if remaining := allEntries(t, k); len(remaining) != 0 {
		t.Errorf("entries %+v, want none", remaining)
	}
}
