package conntrack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/batch"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
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
	raw  syscall.RawConn
	// home takes the socket back unless it may have unread answers.
	home   *sockets
	unread bool
	stop   func() bool
}

// sockets keeps the sockets of closed tables for the next ones: a Deny must not wait for a file
// descriptor while clients of the agent have all of them.
type sockets struct {
	mu   sync.Mutex
	idle []*kernelTable
}

// open opens the table until ctx ends.
func (s *sockets) open(ctx context.Context) (table, error) {
	k, err := s.take()
	if err != nil {
		return nil, fmt.Errorf("open the conntrack table: %w", err)
	}
	expire := func() { _ = k.conn.SetDeadline(time.Unix(1, 0)) }
	if ctx.Err() != nil {
		expire() // now: AfterFunc runs it in another goroutine
	}
	k.stop = context.AfterFunc(ctx, expire)
	return k, nil
}

func (s *sockets) take() (*kernelTable, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		k := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return k, nil
	}
	return s.dial()
}

// prepare opens sockets for n tables at a time.
func (s *sockets) prepare(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.idle) < n {
		k, err := s.dial()
		if err != nil {
			return fmt.Errorf("open the conntrack table: %w", err)
		}
		s.idle = append(s.idle, k)
	}
	return nil
}

func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.idle {
		_ = k.conn.Close()
	}
	s.idle = nil
}

// answersSize has room for the kernel's answers to maxRequests requests.
const answersSize = 1 << 20

func (s *sockets) dial() (*kernelTable, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	// Answers need not repeat the refused request.
	err = errors.Join(err, conn.SetReadBuffer(answersSize), conn.SetOption(netlink.CapAcknowledge, true))
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &kernelTable{conn: conn, raw: raw, home: s}, nil
}

func (k *kernelTable) close() {
	if expired := !k.stop(); expired || k.unread {
		_ = k.conn.Close()
		return
	}
	k.home.mu.Lock()
	defer k.home.mu.Unlock()
	k.home.idle = append(k.home.idle, k)
}

// entries lists connections as the kernel sends them. Kernels before 5.9 ignore the filter
// and list all connections of its family.
func (k *kernelTable) entries(f filter) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		k.unread = true
		_, err := k.conn.Send(netlink.Message{
			Header: netlink.Header{Type: msgGet, Flags: netlink.Request | netlink.Dump},
			Data:   f.message(),
		})
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
		k.unread = false
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

// maxRequests bounds the requests that are sent at once. Meanwhile a change of the cluster waits.
const maxRequests = 256

func (k *kernelTable) change(requests []request) []error {
	results := make([]error, len(requests))
	for start := 0; start < len(requests); start += maxRequests {
		end := min(start+maxRequests, len(requests))
		k.changeSome(requests[start:end], results[start:end])
	}
	for i, r := range requests {
		if r.remove && errors.Is(results[i], unix.EBUSY) {
			results[i] = k.expire(r.key)
		}
		if results[i] != nil {
			results[i] = fmt.Errorf("%s: %w", r, results[i])
		}
	}
	return results
}

// changeSome sends requests in one message and stores their results.
func (k *kernelTable) changeSome(requests []request, results []error) {
	messages := make([]netlink.Message, 0, len(requests))
	indexes := make([]int, 0, len(requests))
	for i, r := range requests {
		if len(r.key.tuple) == 0 {
			results[i] = errNoTuple
			continue
		}
		kind, data := netlink.HeaderType(msgNew), r.key.markMessage(r.mark, r.mask)
		if r.remove {
			kind, data = msgDelete, r.key.message()
		}
		messages = append(messages, netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: data})
		indexes = append(indexes, i)
	}
	if len(messages) == 0 {
		return
	}
	_, err := k.conn.SendMessages(messages)
	if err == nil {
		first := messages[0].Header.Sequence
		err = k.answers(func(sequence uint32, err error) {
			if i := sequence - first; i < uint32(len(indexes)) {
				results[indexes[i]] = err
			}
		})
	}
	if err != nil {
		k.unread = true
		for i := range results {
			results[i] = errors.Join(results[i], err)
		}
	}
}

// answers calls refused for each request that the kernel has refused. It sends these answers before
// the requests are sent.
func (k *kernelTable) answers(refused func(sequence uint32, err error)) error {
	buffer := make([]byte, 1<<16)
	for {
		datagram, err := batch.Receive(k.raw, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
		for m := range batch.Messages(datagram) {
			if m.Kind == unix.NLMSG_ERROR && len(m.Body) >= 4 {
				refused(m.Sequence, m.Errno())
			}
		}
	}
}

// expire removes an entry that the kernel refuses to delete: it sets its timeout to 0, and makes the
// kernel look it up. Older kernels refuse to delete an offloaded entry (EBUSY), but drop it when it is
// looked up after its timeout.
func (k *kernelTable) expire(key key) error {
	if err := k.execute(msgNew, 0, key.timeoutMessage()); err != nil {
		return fmt.Errorf("expire: %w", err)
	}
	err := k.execute(msgDelete, 0, key.message())
	if errors.Is(err, unix.ENOENT) {
		return nil // the look-up has dropped it
	}
	return err
}

// create adds an entry and changes none.
func (k *kernelTable) create(r replacement) error {
	data, err := r.message()
	if err == nil {
		err = k.execute(msgNew, netlink.Create|netlink.Excl, data)
	}
	if err != nil {
		return fmt.Errorf("track a connection: %w", err)
	}
	return nil
}

// execute sends a request and waits for the kernel's answer.
func (k *kernelTable) execute(kind netlink.HeaderType, flags netlink.HeaderFlags, data []byte) error {
	_, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   data,
	})
	return err
}

// errNoTuple refuses a request without a tuple: the kernel would remove all entries.
var errNoTuple = errors.New("the entry has no tuple")

// message returns the data of the message that removes an entry.
func (k key) message() []byte {
	b := k.encode()
	if len(k.id) > 0 {
		b.Bytes(attrID, k.id)
	}
	return b
}

// timeoutMessage returns the data of the message that sets the timeout of an entry to 0.
func (k key) timeoutMessage() []byte {
	b := k.encode()
	b.Uint32(attrTimeout, 0)
	return b
}

// markMessage returns the data of the message that sets the bits of mask in a mark to those
// of mark.
func (k key) markMessage(mark, mask uint32) []byte {
	b := k.encode()
	b.Uint32(attrMark, mark)
	b.Uint32(attrMarkMask, mask)
	return b
}

// encode returns the beginning of a message about the entry.
func (k key) encode() nlattr.Buffer {
	b := nfgenHeader(k.family)
	b.Bytes(attrOriginal|nlattr.Nested, k.tuple)
	if len(k.zone) > 0 {
		b.Bytes(attrZone, k.zone)
	}
	return b
}

// nfgenHeader returns a struct nfgenmsg.
func nfgenHeader(family uint8) nlattr.Buffer {
	return nlattr.Buffer{family, unix.NFNETLINK_V0, 0, 0}
}
