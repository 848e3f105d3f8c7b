package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Messages of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8 // IPCTNL_MSG_CT_NEW is 0
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
)

// errMalformed is about one message of the kernel; the rest are still read.
var errMalformed = errors.New("malformed conntrack message")

// kernelTable is the connection tracking table of the network namespace.
type kernelTable struct {
	conn *netlink.Conn
	stop func() bool
}

// openKernel opens the table until ctx ends.
func openKernel(ctx context.Context) (table, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open the conntrack table: %w", err)
	}
	expire := func() { _ = conn.SetDeadline(time.Unix(1, 0)) }
	if ctx.Err() != nil {
		expire() // now: AfterFunc runs it in another goroutine
	}
	stop := context.AfterFunc(ctx, expire)
	return &kernelTable{conn: conn, stop: stop}, nil
}

func (k *kernelTable) close() {
	k.stop()
	_ = k.conn.Close()
}

// entries lists connections as the kernel sends them. Kernels before 5.9 ignore the filter
// and list all connections of its family.
func (k *kernelTable) entries(f filter) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		data, err := f.message()
		if err == nil {
			_, err = k.conn.Send(netlink.Message{
				Header: netlink.Header{Type: msgGet, Flags: netlink.Request | netlink.Dump},
				Data:   data,
			})
		}
		if err != nil {
			yield(entry{}, fmt.Errorf("list connections: %w", err))
			return
		}
		for m, err := range k.conn.ReceiveIter() {
			if err != nil {
				yield(entry{}, fmt.Errorf("list connections: %w", err))
				return
			}
			e, ok := decodeEntry(m.Data)
			if !ok {
				err = errMalformed
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// countFile contains the number of connections in the reader's network namespace.
const countFile = "/proc/sys/net/netfilter/nf_conntrack_count"

// countEntries returns the number of connections that the kernel tracks.
func countEntries() (int, error) {
	text, err := os.ReadFile(countFile)
	if err != nil {
		return 0, fmt.Errorf("count connections: %w", err)
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("count connections: %s: %w", countFile, err)
	}
	return count, nil
}

// setMark changes an existing entry and creates none.
func (k *kernelTable) setMark(key key, mark, mask uint32) error {
	err := k.execute(msgNew, 0, func() ([]byte, error) { return markMessage(key, mark, mask) })
	if err != nil {
		return fmt.Errorf("mark a connection with %#x/%#x: %w", mark, mask, err)
	}
	return nil
}

// remove deletes an entry, but not a later one with the same tuple. Older kernels refuse to
// delete an offloaded entry (EBUSY), but drop it when it is looked up after its timeout.
func (k *kernelTable) remove(key key) error {
	err := k.execute(msgDelete, 0, key.message)
	if errors.Is(err, unix.EBUSY) {
		err = k.expire(key)
	}
	if err != nil {
		return fmt.Errorf("remove a connection: %w", err)
	}
	return nil
}

// expire sets the timeout of an entry to 0, and makes the kernel look it up.
func (k *kernelTable) expire(key key) error {
	if err := k.execute(msgNew, 0, key.timeoutMessage); err != nil {
		return fmt.Errorf("expire: %w", err)
	}
	err := k.execute(msgDelete, 0, key.message)
	if errors.Is(err, unix.ENOENT) {
		return nil // the look-up has dropped it
	}
	return err
}

// create adds an entry and changes none.
func (k *kernelTable) create(r replacement) error {
	if err := k.execute(msgNew, netlink.Create|netlink.Excl, r.message); err != nil {
		return fmt.Errorf("track a connection: %w", err)
	}
	return nil
}

// execute sends a request and waits for the kernel's answer.
func (k *kernelTable) execute(kind netlink.HeaderType, flags netlink.HeaderFlags, message func() ([]byte, error)) error {
	data, err := message()
	if err != nil {
		return err
	}
	_, err = k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   data,
	})
	return err
}

// message returns the data of the message that removes an entry. It refuses to do so without
// a tuple: the kernel would remove all entries.
func (k key) message() ([]byte, error) {
	if len(k.tuple) == 0 {
		return nil, errors.New("the entry has no tuple")
	}
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(attrOriginal|netlink.Nested, k.tuple)
	if len(k.zone) > 0 {
		ae.Bytes(attrZone, k.zone)
	}
	if len(k.id) > 0 {
		ae.Bytes(attrID, k.id)
	}
	attributes, err := ae.Encode()
	return append(nfgenHeader(k.family), attributes...), err
}

// timeoutMessage returns the data of the message that sets the timeout of an entry to 0.
func (k key) timeoutMessage() ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(attrOriginal|netlink.Nested, k.tuple)
	if len(k.zone) > 0 {
		ae.Bytes(attrZone, k.zone)
	}
	ae.Uint32(attrTimeout, 0)
	attributes, err := ae.Encode()
	return append(nfgenHeader(k.family), attributes...), err
}

// markMessage returns the data of the message that sets the bits of mask in a mark to those
// of mark.
func markMessage(k key, mark, mask uint32) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Bytes(attrOriginal|netlink.Nested, k.tuple)
	if len(k.zone) > 0 {
		ae.Bytes(attrZone, k.zone)
	}
	ae.Uint32(attrMark, mark)
	ae.Uint32(attrMarkMask, mask)
	attributes, err := ae.Encode()
	return append(nfgenHeader(k.family), attributes...), err
}

// nfgenHeader returns a struct nfgenmsg.
func nfgenHeader(family uint8) []byte {
	return []byte{family, unix.NFNETLINK_V0, 0, 0}
}
