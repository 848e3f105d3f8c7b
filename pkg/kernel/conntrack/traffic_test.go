package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

func TestBytesOfBothDirectionsAreAdded(t *testing.T) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	for direction, bytes := range map[uint16]uint64{attrCounters: 1000, attrReplies: 1 << 40} {
		ae.Nested(direction, func(ae *netlink.AttributeEncoder) error {
			ae.ByteOrder = binary.BigEndian
			ae.Uint64(1, 7) // packets
			ae.Uint64(attrCounterBytes, bytes)
			return nil
		})
	}
	counters, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	data := append(direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:1").message(t), counters...)
	if e, ok := decodeEntry(data); !ok || e.bytes != 1<<40+1000 {
		t.Errorf("%d bytes, %v", e.bytes, ok)
	}
}

func TestTraffic(t *testing.T) {
	f := &fakeTable{}
	for i, ends := range [][2]string{
		{"10.0.0.1:1000", "10.0.0.2:80"},
		{"10.0.0.1:1001", "192.168.0.1:10250"}, // to the node
		{"192.168.0.1:1002", "10.0.0.1:80"},    // from the node
		{"10.0.0.1:1003", "10.0.0.2:21"},       // expected by a helper, see below
		{"10.0.0.3:1004", "10.0.0.2:80"},       // panics
	} {
		e := f.add(packet.TCP, ends[0], ends[1])
		e.bytes = uint64(100 + i)
		if i == 3 {
			e.status = statusExpected
		}
	}
	var got []string
	err := traffic(f, addrSet{netip.MustParseAddr("192.168.0.1"): {}}, func(p packet.Packet, toHost bool, bytes uint64) {
		if p.Src.Port() == 1004 {
			panic("evaluated")
		}
		got = append(got, fmt.Sprintf("%v -> %v, to the node: %v, %d", p.Src, p.Dst, toHost, bytes))
	})
	want := []string{"10.0.0.1:1000 -> 10.0.0.2:80, to the node: false, 100", "10.0.0.1:1001 -> 192.168.0.1:10250, to the node: true, 101"}
	if diff := cmp.Diff(want, got); diff != "" || err == nil {
		t.Errorf("error %v, connections (-want +got):\n%s", err, diff)
	}
	f = &fakeTable{broken: errors.New("no buffer space available")}
	if err := traffic(f, nil, nil); !errors.Is(err, f.broken) {
		t.Errorf("error %v, want %v", err, f.broken)
	}
}
