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

// socket is the socket of a bound queue. It is not registered with the poller of the Go runtime,
// because each packet would then wake one thread, and that thread another one for the waiting
// goroutine.
type socket struct {
	fd     int
	batch  batch
	gather bool // the last Receive returned several packets, and no more had arrived
}

// bind configures and binds the queue with the library, and returns the library's socket.
func bind(ctx context.Context, nfq *nfqueue.Nfqueue, number uint16, receiveBuffer int) (*socket, error) {
	if err := setReceiveBuffer(ctx, nfq.Con, number, receiveBuffer); err != nil {
		return nil, err
	}
	if err := checkPermission(nfq.Con); err != nil {
		return nil, err
	}
	ignore := func(nfqueue.Attribute) int { return 0 } // the copy mode is none, so there are no packets
	end := func(error) int { return 1 }                // called when Con is closed
	err := nfq.RegisterWithErrorFunc(context.Background(), ignore, end)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
		return nil, ErrTaken // checkPermission has excluded missing permissions
	}
	if err != nil {
		return nil, err
	}
	return newSocket(nfq.Con)
}

// newSocket returns a duplicate of conn's descriptor. The caller can then close conn, so that the
// library stops reading from the socket.
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

// setReceiveBuffer sets the size of the receive buffer, above net.core.rmem_max if permitted.
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

// checkPermission sends a configuration command that the kernel ignores (NFQNL_CFG_CMD_PF_BIND). The
// kernel answers EPERM both to a process without CAP_NET_ADMIN and to one that binds a taken number;
// this distinguishes the two.
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

// Send implements Socket. The kernel handles all messages of a write, and reports the error of each
// in a separate message.
func (s *socket) Send(msgs []byte) error { return send(s.fd, msgs) }

// Close implements Socket. The kernel unbinds a queue when its socket is closed. A second Close is an
// error, and does not close the file that has got the number of the descriptor since.
func (s *socket) Close() error {
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}
