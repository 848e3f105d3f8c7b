package queue

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// socket is the socket of a bound queue. It is not registered with the poller of the Go
// runtime: that would wake one thread when a packet comes, and that thread another one
// for the goroutine that waits.
type socket struct {
	fd     int
	batch  batch
	gather bool // packets came several at a time, and all were received
}

// bind has the library configure and bind the queue, and returns the socket that
// it did that with.
func bind(ctx context.Context, nfq *nfqueue.Nfqueue, number uint16, receiveBuffer int) (*socket, error) {
	if err := setReceiveBuffer(ctx, nfq.Con, number, receiveBuffer); err != nil {
		return nil, err
	}
	if err := checkPermission(nfq.Con); err != nil {
		return nil, err
	}
	ignore := func(nfqueue.Attribute) int { return 0 } // nothing is queued yet
	end := func(error) int { return 1 }                // Con is closed
	err := nfq.RegisterWithErrorFunc(context.Background(), ignore, end)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
		return nil, ErrTaken // we are permitted, so it is the number
	}
	if err != nil {
		return nil, err
	}
	return newSocket(nfq.Con)
}

// newSocket returns the socket of conn by a descriptor of its own. The one of conn
// can be closed then, and with it the library's interest in the socket ends.
func newSocket(conn *netlink.Conn) (*socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{fd: -1}
	if cerr := raw.Control(func(fd uintptr) {
		s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); cerr != nil || err != nil {
		return nil, errors.Join(cerr, os.NewSyscallError("fcntl", err))
	}
	return s, nil
}

// setReceiveBuffer raises the receive buffer, above the limit of the machine if
// we may.
func setReceiveBuffer(ctx context.Context, conn *netlink.Conn, number uint16, size int) error {
	if err := conn.SetReadBuffer(size); err != nil {
		return fmt.Errorf("set receive buffer to %d: %w", size, err)
	}
	got, err := conn.ReadBuffer()
	if err != nil {
		return fmt.Errorf("get receive buffer: %w", err)
	}
	if got < size {
		klog.FromContext(ctx).Info("Receive buffer is smaller than requested, see net.core.rmem_max",
			"queue", number, "bytes", got, "wanted", size)
	}
	return nil
}

// checkPermission sends a configuration message that does nothing in any kernel
// of this century. The kernel answers EPERM to a process without CAP_NET_ADMIN
// and to one that binds a taken number; this distinguishes the two.
func checkPermission(conn *netlink.Conn) error {
	const attrLen = attrHeaderLen + 4
	msg := appendHeader(nil, msgConfig, 0, 0, attrLen)
	msg = appendAttrHeader(msg, attrConfigCommand, 4)
	msg = append(msg, commandFamilyBind, 0, 0, unix.AF_UNSPEC)
	_, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: msgConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   msg[msgHeaderLen:],
	})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("CAP_NET_ADMIN is missing: %w", err)
	}
	return err
}

// Receive implements Socket.
func (s *socket) Receive(ms []Message) (int, error) {
	n, err := s.batch.receive(s.fd, ms)
	s.gather = 1 < n && n < len(ms)
	return n, err
}

// Send implements Socket. The kernel takes all messages of a write, and reports
// errors of single ones in messages of its own.
func (s *socket) Send(msgs []byte) error { return send(s.fd, msgs) }

// Close implements Socket. The kernel unbinds a queue when its socket is closed.
func (s *socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }
