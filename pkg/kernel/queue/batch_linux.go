package queue

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch receives many datagrams in one system call.
type batch struct {
	headers []mmsghdr
	vectors []unix.Iovec
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	length uint32
}

// receive fills ms with the datagrams that have arrived, perhaps none.
func (b *batch) receive(fd int, ms []Message) (int, error) {
	b.prepare(ms)
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b.headers))),
			uintptr(len(b.headers)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			for i := range n {
				ms[i].N = int(b.headers[i].length)
			}
			return int(n), nil
		case unix.EAGAIN:
			return 0, nil
		case unix.EINTR:
		default:
			return 0, os.NewSyscallError("recvmmsg", errno)
		}
	}
}

// prepare points the headers to the buffers of ms.
func (b *batch) prepare(ms []Message) {
	if len(b.headers) != len(ms) {
		b.headers = make([]mmsghdr, len(ms))
		b.vectors = make([]unix.Iovec, len(ms))
	}
	for i := range ms {
		v := &b.vectors[i]
		v.Base = unsafe.SliceData(ms[i].Buf)
		v.SetLen(len(ms[i].Buf))
		h := &b.headers[i]
		h.Iov = v
		h.SetIovlen(1)
	}
}

// send sends out as one datagram. It does not block: the kernel handles the messages within the
// system call.
func send(fd int, out []byte) error {
	for {
		if err := unix.Send(fd, out, 0); err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}
