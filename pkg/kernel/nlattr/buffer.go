package nlattr

import "encoding/binary"

// Nested is the flag NLA_F_NESTED of the type of attributes that contain attributes.
const Nested = 1 << 15

// Buffer is a list of attributes to be sent. Its methods append one.
type Buffer []byte

// Nest starts an attribute with attributes and returns its offset, for End.
func (b *Buffer) Nest(kind uint16) (start int) { return b.Begin(kind | Nested) }

// Begin is like Nest, without the flag Nested.
func (b *Buffer) Begin(kind uint16) (start int) {
	start = len(*b)
	*b = binary.NativeEndian.AppendUint16(append(*b, 0, 0), kind)
	return start
}

// End ends the attribute that started at start.
func (b *Buffer) End(start int) {
	binary.NativeEndian.PutUint16((*b)[start:], uint16(len(*b)-start))
	for len(*b)%headerLen != 0 {
		*b = append(*b, 0)
	}
}

// Append appends an attribute, whose value write appends to its argument.
func (b *Buffer) Append(kind uint16, write func([]byte) []byte) {
	start := b.Begin(kind)
	*b = write(*b)
	b.End(start)
}

// Bytes appends an attribute.
func (b *Buffer) Bytes(kind uint16, value []byte) {
	start := b.Begin(kind)
	*b = append(*b, value...)
	b.End(start)
}

// String appends an attribute that ends in NUL.
func (b *Buffer) String(kind uint16, value string) {
	start := b.Begin(kind)
	*b = append(append(*b, value...), 0)
	b.End(start)
}

// Uint16 appends an attribute in network byte order.
func (b *Buffer) Uint16(kind, value uint16) {
	start := b.Begin(kind)
	*b = binary.BigEndian.AppendUint16(*b, value)
	b.End(start)
}

// Uint32 appends an attribute in network byte order.
func (b *Buffer) Uint32(kind uint16, value uint32) {
	start := b.Begin(kind)
	*b = binary.BigEndian.AppendUint32(*b, value)
	b.End(start)
}

// Uint64 appends an attribute in network byte order.
func (b *Buffer) Uint64(kind uint16, value uint64) {
	start := b.Begin(kind)
	*b = binary.BigEndian.AppendUint64(*b, value)
	b.End(start)
}
