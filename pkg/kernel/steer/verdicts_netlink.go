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

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/batch"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

const (
	// verdictBatch is the number of elements in a transaction. The kernel may answer each of
	// them, and the answers must fit into the buffer.
	verdictBatch = 4096
	// smallBatch is the least size of the parts in which a transaction is repeated, and
	// forgetAttempts is how often it is repeated.
	smallBatch     = 64
	forgetAttempts = 16
	// dumpSize is larger than any datagram of a dump.
	dumpSize = 1 << 16
)

// nftMsgDestroySetElem is NFT_MSG_DESTROYSETELEM, which deletes elements that need not exist, since
// Linux 6.3.
const nftMsgDestroySetElem = 30

// netlinkVerdicts implements verdictKernel. All its commits come from one socket that stays open, so
// that they can be recognized by its port.
type netlinkVerdicts struct {
	portID atomic.Uint32
	reads  netlinkKernel

	mu        sync.Mutex
	conn      *batch.Conn // nil before the first write, and after an error
	noDestroy bool        // the kernel does not know nftMsgDestroySetElem
	batch     batch.Batch
}

func (v *netlinkVerdicts) port() uint32 { return v.portID.Load() }

// open opens v.conn unless it is open.
func (v *netlinkVerdicts) open() error {
	if v.conn != nil {
		return nil
	}
	conn, err := batch.Dial()
	if err != nil {
		return err
	}
	v.conn = conn
	v.portID.Store(conn.Port())
	return nil
}

func (v *netlinkVerdicts) close() {
	v.portID.Store(0)
	v.conn.Close()
	v.conn = nil
}

// elementKey is the key of an element.
type elementKey interface {
	set() string
	appendTo(b []byte) []byte
}

func (v *netlinkVerdicts) remove(ctx context.Context, keys []elementKey) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for part := range slices.Chunk(keys, verdictBatch) {
		if err := v.removeSome(ctx, part, 1); err != nil {
			return err
		}
	}
	return nil
}

// removeSome removes keys in one transaction. If that fails because some do not exist, it removes the rest
// in smaller ones, because fewer elements expire during a small transaction.
func (v *netlinkVerdicts) removeSome(ctx context.Context, keys []elementKey, attempt int) error {
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
		return v.removeSome(ctx, keys, attempt)
	}
	var rest []elementKey
	for i, k := range keys {
		switch err := failed[i]; {
		case err == 0:
			rest = append(rest, k)
		case err != unix.ENOENT || !v.noDestroy:
			return err
		}
	}
	if attempt == forgetAttempts {
		return fmt.Errorf("elements expired in each of %d attempts", attempt)
	}
	for part := range slices.Chunk(rest, max(len(keys)/4, smallBatch)) {
		if err := v.removeSome(ctx, part, attempt+1); err != nil {
			return err
		}
	}
	return nil
}

func (v *netlinkVerdicts) flush(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	failed, err := v.transact(ctx, len(verdictSets), func(i int) {
		v.message(unix.NFT_MSG_DELSETELEM, 0, verdictSets[i].name)
	})
	return errors.Join(err, anyError(failed))
}

func (v *netlinkVerdicts) deny(ctx context.Context, classes []packet.Class, timeout time.Duration) (full int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for part := range slices.Chunk(classes, verdictBatch) {
		n, err := v.add(ctx, part, timeout)
		full += n
		if err != nil {
			return full, err
		}
	}
	return full, nil
}

// add adds classes in one transaction. If some of them do not fit, it tries once more with the rest. It
// returns the number of classes that it has not added.
func (v *netlinkVerdicts) add(ctx context.Context, classes []packet.Class, timeout time.Duration) (full int, err error) {
	for range 2 {
		failed, err := v.transact(ctx, len(classes), func(i int) {
			v.element(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, verdictKey{classes[i], true}, timeout)
		})
		if err != nil || len(failed) == 0 {
			return full, err
		}
		var rest []packet.Class
		for i, c := range classes {
			switch err := failed[i]; err {
			case 0:
				rest = append(rest, c)
			case unix.ENFILE:
				full++
			default:
				return full, err
			}
		}
		classes = rest
	}
	return full + len(classes), nil
}

func anyError(failed map[int]unix.Errno) error {
	for _, err := range failed {
		return err
	}
	return nil
}

// transact commits n messages, each written by write. If the kernel refuses some of them, nothing is
// committed, and transact returns their errors.
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
	v.batch.Begin(0)
	for i := range n {
		write(i)
	}
	faults, err := v.conn.Commit(&v.batch)
	if err != nil {
		v.close()
		return nil, fmt.Errorf("change the sets of verdicts: %w", err)
	}
	for _, f := range faults {
		if failed == nil {
			failed = make(map[int]unix.Errno, len(faults))
		}
		failed[f.Message] = f.Errno
	}
	return failed, nil
}

func (v *netlinkVerdicts) message(what, flags uint16, set string) {
	v.batch.Message(what, flags, unix.NFPROTO_INET)
	v.batch.String(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	v.batch.String(unix.NFTA_SET_ELEM_LIST_SET, set)
}

// element adds a message about one element. Unless timeout is 0, the element gets it and a counter.
func (v *netlinkVerdicts) element(what, flags uint16, k elementKey, timeout time.Duration) {
	b := &v.batch
	v.message(what, flags, k.set())
	list := b.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	element := b.Nest(unix.NFTA_LIST_ELEM)
	key := b.Nest(unix.NFTA_SET_ELEM_KEY)
	b.Append(unix.NFTA_DATA_VALUE, k.appendTo)
	b.End(key)
	if timeout > 0 {
		b.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(timeout.Milliseconds()))
		counter := b.Nest(unix.NFTA_SET_ELEM_EXPR)
		b.String(unix.NFTA_EXPR_NAME, "counter")
		b.End(b.Nest(unix.NFTA_EXPR_DATA))
		b.End(counter)
	}
	b.End(element)
	b.End(list)
}

func (k verdictKey) appendTo(b []byte) []byte { return appendClass(b, k.class) }

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
	parsers := make(map[string]func([]byte))
	for _, set := range verdictSets {
		parsers[set.name] = func(element []byte) {
			if verdict, ok := set.parse(element); ok {
				each(verdict)
			}
		}
	}
	return v.listSets(ctx, parsers)
}

func (v *netlinkVerdicts) renewed(ctx context.Context, each func(renewedKey)) error {
	parsers := make(map[string]func([]byte))
	for _, f := range families {
		parsers[familyName(renewedSet, f.ipv6)] = func(element []byte) {
			each(renewedKey{f.ipv6, string(nlattr.Get(element, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))})
		}
	}
	return v.listSets(ctx, parsers)
}

// listSets passes each element of the sets with these names to their parsers.
func (v *netlinkVerdicts) listSets(ctx context.Context, parsers map[string]func(element []byte)) error {
	conn, err := v.reads.conn(ctx)
	if err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	buffer := make([]byte, dumpSize)
	for name, parse := range parsers {
		if err != nil {
			break
		}
		if err = listSet(conn, raw, buffer, name, parse); err != nil {
			err = fmt.Errorf("set %s: %w", name, err)
		}
	}
	v.reads.release(conn, err)
	return err
}

func listSet(conn *netlink.Conn, raw syscall.RawConn, buffer []byte, name string, parse func(element []byte)) error {
	r := request(unix.NFPROTO_INET, unix.NFT_MSG_GETSETELEM, netlink.Dump, tableArgument, stringArgument(unix.NFTA_SET_ELEM_LIST_SET, name))
	if _, err := conn.Send(r); err != nil {
		return err
	}
	for {
		datagram, err := receive(raw, buffer)
		if err != nil {
			return err
		}
		for m := range batch.Messages(datagram) {
			switch {
			case m.Kind == unix.NLMSG_DONE:
				return nil
			case m.Kind == unix.NLMSG_ERROR && len(m.Body) >= 4:
				return m.Errno()
			case m.Kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM && len(m.Body) >= nfgenLen:
				for _, e := range nlattr.All(nlattr.Get(m.Body[nfgenLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
					parse(e)
				}
			}
		}
	}
}

func (v verdictSet) parse(element []byte) (r RememberedVerdict, ok bool) {
	r.Denied = v.denied
	for kind, value := range nlattr.All(element) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			r.Class, ok = parseClass(nlattr.Get(value, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_EXPIRATION:
			r.Expires = time.Duration(nlattr.Number(value)) * time.Millisecond
		case unix.NFTA_SET_ELEM_EXPR:
			r.Packets = nlattr.Number(nlattr.Get(value, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS))
		}
	}
	return r, ok
}
