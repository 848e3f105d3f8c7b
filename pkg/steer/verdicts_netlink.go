package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/nlattr"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

const (
	// verdictBatch is the number of elements in a transaction. Each may get an
	// answer.
	verdictBatch = 4096
	// verdictBuffers have room for the messages of a transaction and for the answers.
	verdictBuffers = 4 << 20
	// smallBatch is the number of elements in the smallest part of a transaction that
	// is repeated, and forgetAttempts how often it is at most.
	smallBatch     = 64
	forgetAttempts = 16
	// dumpSize is above the size of the kernel's datagrams in a dump.
	dumpSize = 1 << 16
)

// nftMsgDestroySetElem is a NFT_MSG_DELSETELEM for elements that need not exist, since
// Linux 6.3.
const nftMsgDestroySetElem = 30

// netlinkVerdicts implements verdictKernel. All its commits come from one socket that
// stays open: the kernel names the port of the socket in the notification of a commit, and
// no other socket can have it.
type netlinkVerdicts struct {
	portID atomic.Uint32

	mu        sync.Mutex
	conn      *netlink.Conn   // nil before the first write, and after an error
	raw       syscall.RawConn // of conn
	sequence  uint32          // of the last message
	noDestroy bool            // the kernel does not know nftMsgDestroySetElem
	batch     []byte
	answers   []byte
}

func (v *netlinkVerdicts) port() uint32 { return v.portID.Load() }

// open makes v.conn a socket.
func (v *netlinkVerdicts) open() error {
	if v.conn != nil {
		return nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	err = errors.Join(conn.SetReadBuffer(verdictBuffers), conn.SetWriteBuffer(verdictBuffers), conn.SetOption(netlink.CapAcknowledge, true))
	raw, errRaw := conn.SyscallConn()
	if err = errors.Join(err, errRaw); err != nil {
		conn.Close()
		return err
	}
	v.conn, v.raw = conn, raw
	if v.answers == nil {
		v.answers = make([]byte, dumpSize)
	}
	v.portID.Store(conn.PID())
	return nil
}

func (v *netlinkVerdicts) close() {
	v.portID.Store(0)
	v.conn.Close()
	v.conn, v.raw = nil, nil
}

func (v *netlinkVerdicts) forget(ctx context.Context, keys []verdictKey) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for batch := range slices.Chunk(keys, verdictBatch) {
		if err := v.remove(ctx, batch, 1); err != nil {
			return err
		}
	}
	return nil
}

// remove removes keys in one transaction. If that fails because some do not exist, it
// removes the others in smaller ones: the more elements and the longer a transaction, the
// more elements expire before its end.
func (v *netlinkVerdicts) remove(ctx context.Context, keys []verdictKey, attempt int) error {
	kind := uint16(nftMsgDestroySetElem)
	if v.noDestroy {
		kind = unix.NFT_MSG_DELSETELEM
	}
	failed, err := v.transact(ctx, len(keys), func(i int) { v.element(kind, 0, keys[i], 0) })
	if err != nil || len(failed) == 0 {
		return err
	}
	if !v.noDestroy && failed[0] == unix.EINVAL {
		v.noDestroy = true
		return v.remove(ctx, keys, attempt)
	}
	var left []verdictKey
	for i, k := range keys {
		switch err := failed[i]; {
		case err == 0:
			left = append(left, k)
		case err != unix.ENOENT || !v.noDestroy:
			return err
		}
	}
	if attempt == forgetAttempts {
		return fmt.Errorf("elements expired in each of %d attempts", attempt)
	}
	for part := range slices.Chunk(left, max(len(keys)/4, smallBatch)) {
		if err := v.remove(ctx, part, attempt+1); err != nil {
			return err
		}
	}
	return nil
}

func (v *netlinkVerdicts) flush(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	failed, err := v.transact(ctx, len(verdictSets), func(i int) {
		v.message(unix.NFT_MSG_DELSETELEM, 0, verdictSets[i].name, nil)
	})
	return errors.Join(err, firstOf(failed))
}

func (v *netlinkVerdicts) deny(ctx context.Context, classes []packet.Class, timeout time.Duration) (full int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for batch := range slices.Chunk(classes, verdictBatch) {
		n, err := v.add(ctx, batch, timeout)
		full += n
		if err != nil {
			return full, err
		}
	}
	return full, nil
}

// add adds classes in one transaction. If there is no room for all, it adds those for
// which there was, as far as there still is: it returns the number of others.
func (v *netlinkVerdicts) add(ctx context.Context, classes []packet.Class, timeout time.Duration) (full int, err error) {
	for range 2 {
		failed, err := v.transact(ctx, len(classes), func(i int) {
			v.element(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, verdictKey{classes[i], true}, timeout)
		})
		if err != nil || len(failed) == 0 {
			return full, err
		}
		var left []packet.Class
		for i, c := range classes {
			switch err := failed[i]; err {
			case 0:
				left = append(left, c)
			case unix.ENFILE:
				full++
			default:
				return full, err
			}
		}
		classes = left
	}
	return full + len(classes), nil
}

func firstOf(failed map[int]unix.Errno) error {
	for _, err := range failed {
		return err
	}
	return nil
}

// transact commits n messages, each written by write. If the kernel refuses some of them,
// nothing is committed, and it returns their errors.
func (v *netlinkVerdicts) transact(ctx context.Context, n int, write func(i int)) (failed map[int]unix.Errno, err error) {
	if n == 0 {
		return nil, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := v.open(); err != nil {
		return nil, err
	}
	v.batch = v.batch[:0]
	v.header(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	begin := v.sequence
	for i := range n {
		write(i)
	}
	v.header(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	failed, err = v.exchange(begin, n)
	if err != nil {
		v.close() // answers may be left
		return nil, fmt.Errorf("change the sets of verdicts: %w", err)
	}
	return failed, nil
}

// exchange sends v.batch and receives the answers. The kernel handles a batch before the
// system call that sends it returns, and answers only what fails.
func (v *netlinkVerdicts) exchange(begin uint32, n int) (failed map[int]unix.Errno, err error) {
	var result error
	err = v.raw.Write(func(fd uintptr) bool {
		result = unix.Sendto(int(fd), v.batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return result != unix.EAGAIN && result != unix.EINTR
	})
	if err = errors.Join(err, result); err != nil {
		return nil, err
	}
	for {
		size := 0
		err = v.raw.Control(func(fd uintptr) {
			size, _, result = unix.Recvfrom(int(fd), v.answers, unix.MSG_DONTWAIT)
		})
		switch {
		case err != nil:
			return nil, err
		case result == unix.EAGAIN:
			return failed, nil
		case result == unix.EINTR:
			continue
		case result != nil:
			return nil, result
		}
		for sequence, errno := range errorsIn(v.answers[:size]) {
			i := int(sequence - begin - 1)
			switch {
			case errno == 0:
			case i < 0 || i >= n:
				return nil, errno // of the whole batch
			case failed == nil:
				failed = map[int]unix.Errno{i: errno}
			default:
				failed[i] = errno
			}
		}
	}
}

// errorsIn yields the sequence number and the error of each message of type NLMSG_ERROR.
func errorsIn(datagram []byte) func(yield func(uint32, unix.Errno) bool) {
	return func(yield func(uint32, unix.Errno) bool) {
		for m := range messages(datagram) {
			if m.kind != unix.NLMSG_ERROR || len(m.body) < 4 {
				continue
			}
			if !yield(m.sequence, unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))) {
				return
			}
		}
	}
}

// rawMessage is a netlink message.
type rawMessage struct {
	kind     uint16
	sequence uint32
	body     []byte // part of the datagram
}

// messages yields the messages of a datagram up to one that is malformed.
func messages(datagram []byte) func(yield func(rawMessage) bool) {
	return func(yield func(rawMessage) bool) {
		for len(datagram) >= unix.NLMSG_HDRLEN {
			length := int(binary.NativeEndian.Uint32(datagram))
			if length < unix.NLMSG_HDRLEN || length > len(datagram) {
				return
			}
			m := rawMessage{binary.NativeEndian.Uint16(datagram[4:]), binary.NativeEndian.Uint32(datagram[8:]), datagram[unix.NLMSG_HDRLEN:length]}
			if !yield(m) {
				return
			}
			datagram = datagram[min(align(length), len(datagram)):]
		}
	}
}

// header appends a message without attributes and returns where it starts.
func (v *netlinkVerdicts) header(kind, flags uint16, family byte, resource uint16) (start int) {
	v.sequence++
	start = len(v.batch)
	b := binary.NativeEndian.AppendUint32(v.batch, unix.NLMSG_HDRLEN+nfgenLen)
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, v.sequence)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, unix.NFNETLINK_V0)
	v.batch = binary.BigEndian.AppendUint16(b, resource)
	return start
}

// message appends a message about a set, with attributes that more appends.
func (v *netlinkVerdicts) message(what, flags uint16, set string, more func()) {
	start := v.header(unix.NFNL_SUBSYS_NFTABLES<<8|what, unix.NLM_F_REQUEST|flags, unix.NFPROTO_INET, 0)
	v.text(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	v.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	if more != nil {
		more()
	}
	binary.NativeEndian.PutUint32(v.batch[start:], uint32(len(v.batch)-start))
}

// element appends a message about one element, with a timeout and a counter unless timeout
// is 0.
func (v *netlinkVerdicts) element(what, flags uint16, k verdictKey, timeout time.Duration) {
	v.message(what, flags, k.set(), func() {
		list := v.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		element := v.nest(unix.NFTA_LIST_ELEM)
		key := v.nest(unix.NFTA_SET_ELEM_KEY)
		value := v.attribute(unix.NFTA_DATA_VALUE)
		v.batch = appendClass(v.batch, k.class)
		v.end(value)
		v.end(key)
		if timeout > 0 {
			n := v.attribute(unix.NFTA_SET_ELEM_TIMEOUT)
			v.batch = binary.BigEndian.AppendUint64(v.batch, uint64(timeout.Milliseconds()))
			v.end(n)
			counter := v.nest(unix.NFTA_SET_ELEM_EXPR)
			v.text(unix.NFTA_EXPR_NAME, "counter")
			v.end(v.nest(unix.NFTA_EXPR_DATA))
			v.end(counter)
		}
		v.end(element)
		v.end(list)
	})
}

// attribute begins an attribute, and returns where it starts, for end.
func (v *netlinkVerdicts) attribute(kind uint16) (start int) {
	start = len(v.batch)
	v.batch = append(v.batch, 0, 0)
	v.batch = binary.NativeEndian.AppendUint16(v.batch, kind)
	return start
}

func (v *netlinkVerdicts) nest(kind uint16) (start int) { return v.attribute(kind | unix.NLA_F_NESTED) }

func (v *netlinkVerdicts) end(start int) {
	binary.NativeEndian.PutUint16(v.batch[start:], uint16(len(v.batch)-start))
	for len(v.batch)%unix.NLMSG_ALIGNTO != 0 {
		v.batch = append(v.batch, 0)
	}
}

func (v *netlinkVerdicts) text(kind uint16, s string) {
	start := v.attribute(kind)
	v.batch = append(append(v.batch, s...), 0)
	v.end(start)
}

// appendClass appends c as the key of an element. Each part is padded to 4 bytes.
func appendClass(b []byte, c packet.Class) []byte {
	if c.Src.Is4() {
		src, dst := c.Src.As4(), c.Dst.As4()
		b = append(append(b, src[:]...), dst[:]...)
	} else {
		src, dst := c.Src.As16(), c.Dst.As16()
		b = append(append(b, src[:]...), dst[:]...)
	}
	return append(b, byte(c.Proto), 0, 0, 0, byte(c.Port>>8), byte(c.Port), 0, 0)
}

// parseClass decodes the key of an element.
func parseClass(key []byte) (c packet.Class, ok bool) {
	n := (len(key) - 8) / 2
	if len(key) != 2*n+8 || n != 4 && n != 16 {
		return packet.Class{}, false
	}
	c.Src, _ = netip.AddrFromSlice(key[:n])
	c.Dst, _ = netip.AddrFromSlice(key[n : 2*n])
	c.Proto, c.Port = packet.Proto(key[2*n]), binary.BigEndian.Uint16(key[2*n+4:])
	return c, true
}

func (v *netlinkVerdicts) list(ctx context.Context, each func(RememberedVerdict)) error {
	conn, err := netlinkKernel{}.conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, dumpSize)
	for _, set := range verdictSets {
		if err := listSet(conn, raw, buffer, set, each); err != nil {
			return fmt.Errorf("set %s: %w", set.name, err)
		}
	}
	return nil
}

// listSet calls each for all elements of a set.
func listSet(conn *netlink.Conn, raw syscall.RawConn, buffer []byte, set verdictSet, each func(RememberedVerdict)) error {
	r, err := request(unix.NFPROTO_INET, unix.NFT_MSG_GETSETELEM, netlink.Dump, ofTable, stringArgument(unix.NFTA_SET_ELEM_LIST_SET, set.name))
	if err != nil {
		return err
	}
	if _, err := conn.Send(r); err != nil {
		return err
	}
	for {
		datagram, err := receive(raw, buffer)
		if err != nil {
			return err
		}
		for m := range messages(datagram) {
			switch {
			case m.kind == unix.NLMSG_DONE:
				return nil
			case m.kind == unix.NLMSG_ERROR && len(m.body) >= 4:
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
			case m.kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM && len(m.body) >= nfgenLen:
				for _, e := range nlattr.All(attribute(m.body[nfgenLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
					if verdict, ok := set.parse(e); ok {
						each(verdict)
					}
				}
			}
		}
	}
}

// parse decodes an element.
func (v verdictSet) parse(element []byte) (r RememberedVerdict, ok bool) {
	r.Denied = v.denied
	for kind, value := range nlattr.All(element) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			r.Class, ok = parseClass(attribute(value, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_EXPIRATION:
			r.Expires = time.Duration(number(value)) * time.Millisecond
		case unix.NFTA_SET_ELEM_EXPR:
			r.Packets = number(attribute(value, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS))
		}
	}
	return r, ok
}
