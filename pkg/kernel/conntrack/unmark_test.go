package conntrack

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

func TestUnmarkClearsOnlyItsBits(t *testing.T) {
	f := &fakeTable{}
	for _, mark := range []uint32{0, 0x1000, 0x1800, 0x4000, 0x5800} {
		f.add(packet.TCP, "10.0.0.1:1000", "10.0.0.2:80").mark = mark
	}
	if err := unmark(f, 0x1800); err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint32{0, 0, 0, 0x4000, 0x4000} {
		if got := f.rows[i].mark; got != want {
			t.Errorf("connection %d has the mark %#x, want %#x", i, got, want)
		}
	}
	if f.writes != 3 {
		t.Errorf("%d marks were written, want those 3 that had a bit", f.writes)
	}
	f.refused = unix.EPERM
	f.rows[0].mark = 0x1000
	if err := unmark(f, 0x1800); !errors.Is(err, unix.EPERM) {
		t.Errorf("error %v, want %v", err, unix.EPERM)
	}
}
