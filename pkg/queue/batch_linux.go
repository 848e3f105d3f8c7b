package queue

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch makes the system calls of a socket: one recvmmsg for many datagrams and
// one write for many verdicts. The functions a syscall.RawConn calls are made
// once, so that neither allocates.
type batch struct {
	headers []mmsghdr
	vectors []unix.Iovec
	n       int
	out     []byte
	err     error // of the system call

	receiveWaiting func(fd uintptr) bool // false when nothing was there
	receiveOnce    func(fd uintptr)
	write          func(fd uintptr)
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	length uint32
}

func newBatch() *batch {
	b := &batch{}
	b.receiveWaiting = func(fd uintptr) bool { b.recvmmsg(fd); return b.err != unix.EAGAIN }
	b.receiveOnce = b.recvmmsg
	b.write = b.writeAll
	return b
}

// receive fills ms with what is there. If wait is true it waits until something
// is there; the read deadline of conn ends that with os.ErrDeadlineExceeded.
func (b *batch) receive(conn syscall.RawConn, ms []Message, wait bool) (int, error) {
	b.prepare(ms)
	var err error
	if wait {
		err = conn.Read(b.receiveWaiting)
	} else {
		err = conn.Control(b.receiveOnce)
	}
	if err != nil {
		return 0, err
	}
	if b.err != nil && b.err != unix.EAGAIN {
		return 0, os.NewSyscallError("recvmmsg", b.err)
	}
	for i := range b.n {
		ms[i].N = int(b.headers[i].length)
	}
	return b.n, nil
}

// prepare points the headers to the buffers of ms.
func (b *batch) prepare(ms []Message) {
	if len(b.headers) != len(ms) {
		b.headers = make([]mmsghdr, len(ms))
		b.vectors = make([]unix.Iovec, len(ms))
	}
	b.n, b.err = 0, nil
	for i := range ms {
		v := &b.vectors[i]
		v.Base = unsafe.SliceData(ms[i].Buf)
		v.SetLen(len(ms[i].Buf))
		h := &b.headers[i]
		h.Iov = v
		h.SetIovlen(1)
	}
}

func (b *batch) recvmmsg(fd uintptr) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b.headers))),
			uintptr(len(b.headers)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			b.n, b.err = int(n), nil
			return
		case unix.EINTR:
		default:
			b.err = errno
			return
		}
	}
}

// send writes out in one piece. It does not wait: the kernel acts on the
// messages within the call.
func (b *batch) send(conn syscall.RawConn, out []byte) error {
	b.out, b.err = out, nil
	if err := conn.Control(b.write); err != nil {
		return err
	}
	return os.NewSyscallError("write", b.err)
}

func (b *batch) writeAll(fd uintptr) {
	for {
		n, err := unix.Write(int(fd), b.out)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n < len(b.out) {
			err = io.ErrShortWrite
		}
		b.err = err
		return
	}
}
