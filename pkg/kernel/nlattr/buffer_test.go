package nlattr

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
)

// What Buffer writes is what the library writes.
func TestBuffer(t *testing.T) {
	var b Buffer
	nested := b.Nest(1)
	b.Bytes(2, []byte{1, 2, 3})
	b.String(3, "abcd")
	b.End(nested)
	plain := b.Begin(4)
	b.Uint16(5, 0x1234)
	b.End(plain)
	b.Uint32(6, 0x12345678)
	b.Uint64(7, 0x123456789abcdef0)
	b.Append(8, func(b []byte) []byte { return append(b, 9) })

	want := netlink.NewAttributeEncoder()
	want.ByteOrder = binary.BigEndian
	want.Nested(1, func(ae *netlink.AttributeEncoder) error {
		ae.Bytes(2, []byte{1, 2, 3})
		ae.String(3, "abcd")
		return nil
	})
	want.Do(4, func() ([]byte, error) { return encode(t, attribute{5, []byte{0x12, 0x34}}), nil })
	want.Uint32(6, 0x12345678)
	want.Uint64(7, 0x123456789abcdef0)
	want.Bytes(8, []byte{9})
	if all, err := want.Encode(); err != nil || !bytes.Equal(b, all) {
		t.Errorf("got\n%x, want\n%x, %v", b, all, err)
	}
}
