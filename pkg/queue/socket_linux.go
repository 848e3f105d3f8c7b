package queue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// socket is a bound queue. Go's poller does not know it: that would wake one
// thread when a packet comes, and that thread another one for the goroutine that
// waits.
type socket struct {
	fd    int
	event int // an eventfd that Interrupt makes readable for good
	batch batch
	last  int // how many datagrams the last Receive returned
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
	if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(s.fd))
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
		klog.FromContext(ctx).Info("Receive buffer is smaller than asked for, see net.core.rmem_max",
			"queue", number, "bytes", got, "wanted", size)
	}
	return nil
}

// checkPermission sends a configuration message that does nothing in any kernel
// of this century. The kernel answers EPERM to a process without CAP_NET_ADMIN
// and to one that asks for a taken number; this tells the two apart.
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

// Receive implements Socket. After several datagrams at once it lets more of them
// gather before it asks to be woken: who sends a packet has to wake us, which takes
// him longer than everything else that queueing the packet does.
func (s *socket) Receive(ms []Message, deadline time.Time) (int, error) {
	n, err := s.batch.receive(s.fd, ms)
	if n == 0 && err == nil && s.last > 1 {
		n, err = s.receiveAfter(ms, time.Now().Add(gatherTime), s.event)
	}
	if n == 0 && err == nil {
		n, err = s.receiveAfter(ms, deadline, s.event, s.fd)
	}
	s.last = n
	return n, err
}

// receiveAfter receives what is there when one of fds has become readable, or at the
// deadline unless it is zero.
func (s *socket) receiveAfter(ms []Message, deadline time.Time, fds ...int) (int, error) {
	var polled [2]unix.PollFd
	for i, fd := range fds {
		polled[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	for {
		var timeout *unix.Timespec
		if !deadline.IsZero() {
			t := unix.NsecToTimespec(int64(max(0, time.Until(deadline))))
			timeout = &t
		}
		_, err := unix.Ppoll(polled[:len(fds)], timeout, nil)
		switch {
		case err == nil && polled[0].Revents&unix.POLLNVAL != 0:
			return 0, os.NewSyscallError("ppoll", unix.EBADF) // the eventfd is closed: no call would ever wait
		case err == nil:
			return s.batch.receive(s.fd, ms)
		case err != unix.EINTR:
			return 0, os.NewSyscallError("ppoll", err)
		}
	}
}

// Interrupt implements Socket. It tries for a second: without it the loop would see
// the end only when a packet comes.
func (s *socket) Interrupt() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	for range 1000 {
		if _, err := unix.Write(s.event, one); err == nil || err == unix.EBADF {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Send implements Socket. The kernel takes all messages of a write, and tells
// errors of single ones in messages of its own.
func (s *socket) Send(msgs []byte) error { return send(s.fd, msgs) }

// Close implements Socket. The kernel unbinds a queue when its socket is closed.
func (s *socket) Close() error {
	return errors.Join(unix.Close(s.fd), unix.Close(s.event))
}
