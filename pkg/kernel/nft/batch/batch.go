// Package batch sends transactions to nftables as batches of messages, which the kernel commits
// or refuses as a whole. It knows the framing of netlink and nfnetlink, but not the meaning of
// the attributes.
package batch

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// nfnlBatchGenID is NFNL_BATCH_GENID, linux/netfilter/nfnetlink.h.
const nfnlBatchGenID = 1

// MaxAttribute is the largest length of an attribute: the kernel has 16 bits for it.
const MaxAttribute = 1<<16 - 1

// Batch is a transaction. Begin reuses its buffer. The zero value is ready for Begin. A Batch must
// not be used by two goroutines at the same time.
type Batch struct {
	buffer   []byte
	messages int
	start    int // offset of the last message
}

// Begin discards the contents and starts a transaction. The kernel refuses it unless generation
// is the current one of nftables, or 0.
func (b *Batch) Begin(generation uint32) {
	b.buffer, b.messages = b.buffer[:0], 0
	b.header(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		b.Uint32(nfnlBatchGenID, generation)
	}
}

// Message starts an nftables message. kind is an NFT_MSG constant, flags are netlink flags in
// addition to NLM_F_REQUEST, and family is an NFPROTO constant. The attributes that follow belong to it.
func (b *Batch) Message(kind, flags uint16, family byte) {
	b.messages++
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, family, 0)
}

// Messages is the number of messages of the transaction.
func (b *Batch) Messages() int { return b.messages }

// Offset is the length of the last message so far. A Fault identifies an attribute by its offset.
func (b *Batch) Offset() int { return len(b.buffer) - b.start }

func (b *Batch) header(kind, flags uint16, family byte, resource uint16) {
	b.start = len(b.buffer)
	buf := binary.NativeEndian.AppendUint32(b.buffer, 0) // the length
	buf = binary.NativeEndian.AppendUint16(buf, kind)
	buf = binary.NativeEndian.AppendUint16(buf, unix.NLM_F_REQUEST|flags)
	buf = binary.NativeEndian.AppendUint32(buf, uint32(b.messages)) // the sequence number
	buf = binary.NativeEndian.AppendUint32(buf, 0)
	buf = append(buf, family, unix.NFNETLINK_V0)
	b.buffer = binary.BigEndian.AppendUint16(buf, resource)
	b.updateLength()
}

// updateLength writes the length of the last message.
func (b *Batch) updateLength() {
	binary.NativeEndian.PutUint32(b.buffer[b.start:], uint32(len(b.buffer)-b.start))
}

// finish ends the transaction and returns its messages.
func (b *Batch) finish() []byte {
	b.messages++
	b.header(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.messages--
	return b.buffer
}

// Nest starts a nested attribute and returns its offset, for End.
func (b *Batch) Nest(kind uint16) (start int) { return b.attribute(kind | unix.NLA_F_NESTED) }

// End ends the attribute that started at start.
func (b *Batch) End(start int) {
	binary.NativeEndian.PutUint16(b.buffer[start:], uint16(len(b.buffer)-start))
	for len(b.buffer)%unix.NLMSG_ALIGNTO != 0 {
		b.buffer = append(b.buffer, 0)
	}
	b.updateLength()
}

func (b *Batch) attribute(kind uint16) (start int) {
	start = len(b.buffer)
	b.buffer = append(b.buffer, 0, 0)
	b.buffer = binary.NativeEndian.AppendUint16(b.buffer, kind)
	return start
}

// Bytes adds an attribute.
func (b *Batch) Bytes(kind uint16, value []byte) {
	start := b.attribute(kind)
	b.buffer = append(b.buffer, value...)
	b.End(start)
}

// Append adds an attribute, whose value write appends to its argument.
func (b *Batch) Append(kind uint16, write func([]byte) []byte) {
	start := b.attribute(kind)
	b.buffer = write(b.buffer)
	b.End(start)
}

// String adds an attribute that ends in NUL.
func (b *Batch) String(kind uint16, value string) {
	start := b.attribute(kind)
	b.buffer = append(append(b.buffer, value...), 0)
	b.End(start)
}

// Uint32 adds an attribute in network byte order.
func (b *Batch) Uint32(kind uint16, value uint32) {
	start := b.attribute(kind)
	b.buffer = binary.BigEndian.AppendUint32(b.buffer, value)
	b.End(start)
}

// Uint64 adds an attribute in network byte order.
func (b *Batch) Uint64(kind uint16, value uint64) {
	start := b.attribute(kind)
	b.buffer = binary.BigEndian.AppendUint64(b.buffer, value)
	b.End(start)
}
