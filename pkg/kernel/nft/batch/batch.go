// Package batch sends transactions to nftables as batches of messages, which the kernel commits
// or refuses as a whole. It knows the framing of netlink and nfnetlink, but not the meaning of
// the attributes.
package batch

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// nfnlBatchGenID is NFNL_BATCH_GENID, linux/netfilter/nfnetlink.h.
const nfnlBatchGenID = 1

// MaxAttribute is the largest length of an attribute: the kernel has 16 bits for it.
const MaxAttribute = 1<<16 - 1

// Batch is a transaction. Begin reuses its buffer. The zero value is ready for Begin. A Batch must
// not be used by two goroutines at the same time.
type Batch struct {
	nlattr.Buffer
	messages int
	start    int // offset of the last message
}

// Begin discards the contents and starts a transaction. The kernel refuses it unless generation
// is the current one of nftables, or 0.
func (b *Batch) Begin(generation uint32) {
	b.Buffer, b.messages, b.start = b.Buffer[:0], 0, 0
	b.header(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		b.Uint32(nfnlBatchGenID, generation)
	}
}

// Message starts an nftables message. kind is an NFT_MSG constant, flags are netlink flags in
// addition to NLM_F_REQUEST, and family is an NFPROTO constant. The attributes that follow belong to it.
func (b *Batch) Message(kind, flags uint16, family byte) {
	b.endMessage()
	b.messages++
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, family, 0)
}

// Messages is the number of messages of the transaction.
func (b *Batch) Messages() int { return b.messages }

// Offset is the length of the last message so far. A Fault identifies an attribute by its offset.
func (b *Batch) Offset() int { return len(b.Buffer) - b.start }

func (b *Batch) header(kind, flags uint16, family byte, resource uint16) {
	b.start = len(b.Buffer)
	buf := binary.NativeEndian.AppendUint32(b.Buffer, 0) // the length, see endMessage
	buf = binary.NativeEndian.AppendUint16(buf, kind)
	buf = binary.NativeEndian.AppendUint16(buf, unix.NLM_F_REQUEST|flags)
	buf = binary.NativeEndian.AppendUint32(buf, uint32(b.messages)) // the sequence number
	buf = binary.NativeEndian.AppendUint32(buf, 0)
	buf = append(buf, family, unix.NFNETLINK_V0)
	b.Buffer = binary.BigEndian.AppendUint16(buf, resource)
}

// endMessage writes the length of the last message.
func (b *Batch) endMessage() {
	binary.NativeEndian.PutUint32(b.Buffer[b.start:], uint32(b.Offset()))
}

// finish ends the transaction and returns its messages.
func (b *Batch) finish() []byte {
	b.endMessage()
	b.messages++
	b.header(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.messages--
	b.endMessage()
	return b.Buffer
}
