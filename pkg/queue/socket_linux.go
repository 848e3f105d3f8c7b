package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// socket is a bound queue. From bind to Close the goroutine of the library is
// parked in its error function and the netlink socket is ours alone; then the
// library unbinds.
type socket struct {
	nfq         *nfqueue.Nfqueue
	raw         syscall.RawConn
	batch       *batch
	deadline    time.Time // the read deadline of nfq.Con, as far as we set it
	interrupted atomic.Bool
	parked      chan struct{}
	closing     chan struct{}
}

func newSocket(nfq *nfqueue.Nfqueue) *socket {
	return &socket{nfq: nfq, batch: newBatch(), parked: make(chan struct{}), closing: make(chan struct{})}
}

func (s *socket) bind(ctx context.Context, number uint16, receiveBuffer int) error {
	if err := s.setReceiveBuffer(ctx, number, receiveBuffer); err != nil {
		return err
	}
	if err := s.checkPermission(); err != nil {
		return err
	}
	raw, err := s.nfq.Con.SyscallConn()
	if err != nil {
		return err
	}
	s.raw = raw
	err = s.takeOver()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
		return ErrTaken // we are permitted, so it is the number
	}
	return err
}

// setReceiveBuffer raises the receive buffer, above the limit of the machine if
// we may.
func (s *socket) setReceiveBuffer(ctx context.Context, number uint16, size int) error {
	if err := s.nfq.Con.SetReadBuffer(size); err != nil {
		return fmt.Errorf("set receive buffer to %d: %w", size, err)
	}
	got, err := s.nfq.Con.ReadBuffer()
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
func (s *socket) checkPermission() error {
	const attrLen = attrHeaderLen + 4
	msg := appendHeader(nil, msgConfig, 0, 0, attrLen)
	msg = appendAttrHeader(msg, attrConfigCommand, 4)
	msg = append(msg, commandFamilyBind, 0, 0, unix.AF_UNSPEC)
	_, err := s.nfq.Con.Execute(netlink.Message{
		Header: netlink.Header{Type: msgConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   msg[msgHeaderLen:],
	})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("CAP_NET_ADMIN is missing: %w", err)
	}
	return err
}

// takeOver binds and parks the goroutine of the library. The library is given a
// context of its own that Close ends: one that ended earlier would have it give
// up its socket under our hands.
func (s *socket) takeOver() error {
	ignore := func(nfqueue.Attribute) int { return 0 } // nothing is queued yet
	park := func(error) int {
		close(s.parked)
		<-s.closing
		return 1 // the library unbinds
	}
	if err := s.nfq.RegisterWithErrorFunc(context.Background(), ignore, park); err != nil {
		return err
	}
	if err := s.nfq.Con.SetReadDeadline(past); err != nil { // ends its Receive with an error
		return err
	}
	<-s.parked
	return s.nfq.Con.SetReadDeadline(time.Time{})
}

// Receive implements Socket.
func (s *socket) Receive(ms []Message, deadline time.Time) (int, error) {
	if !deadline.Equal(s.deadline) {
		if err := s.nfq.Con.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		s.deadline = deadline
	}
	// Interrupt sets its flag first and its deadline next. Whichever of the
	// two deadlines came last, either we see the flag or waiting ends at once.
	if !s.interrupted.Load() {
		n, err := s.batch.receive(s.raw, ms, true)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	return s.batch.receive(s.raw, ms, false)
}

// Interrupt implements Socket.
func (s *socket) Interrupt() {
	s.interrupted.Store(true)
	_ = s.nfq.Con.SetReadDeadline(past) // fails on a closed socket only, which nobody reads
}

// Send implements Socket. The kernel takes all messages of a write, and tells
// errors of single ones in messages of its own.
func (s *socket) Send(msgs []byte) error {
	return s.batch.send(s.raw, msgs)
}

// Close implements Socket. Closing alone would unbind as well.
func (s *socket) Close() error {
	close(s.closing)
	return s.nfq.Close()
}
