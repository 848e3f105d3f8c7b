// The floor is the minimum that a program can do with queued packets: it receives batches,
// reads only the number of each packet, and accepts a batch with one message. No agent that
// queues packets can be faster. It reads as many queues as its argument says, from 0 up,
// each on its own thread, until its standard input ends.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	batchLen   = 64       // packets per verdict
	messageLen = 512      // no payload is copied
	bufferLen  = 16 << 20 // of a socket, in bytes
	queueLen   = 16384    // packets
)

// From linux/netfilter/nfnetlink_queue.h.
const (
	configMessage  = unix.NFNL_SUBSYS_QUEUE<<8 | 2 // NFQNL_MSG_CONFIG
	verdictMessage = unix.NFNL_SUBSYS_QUEUE<<8 | 3 // NFQNL_MSG_VERDICT_BATCH

	configCommand = 1 // NFQA_CFG_CMD
	configParams  = 2 // NFQA_CFG_PARAMS
	configLen     = 3 // NFQA_CFG_QUEUE_MAXLEN
	configMask    = 4 // NFQA_CFG_MASK
	configFlags   = 5 // NFQA_CFG_FLAGS
	flagGSO       = 1 << 2
	bind          = 1 // NFQNL_CFG_CMD_BIND
	copyMeta      = 1 // NFQNL_COPY_META
	verdictHeader = 2 // NFQA_VERDICT_HDR

	// idAt is the position of a packet's number in its message: after the headers of netlink
	// (16 bytes) and nfnetlink (4), in the first attribute (4).
	idAt = 24
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments, want the number of queues", len(args))
	}
	queues, err := strconv.ParseUint(args[0], 10, 8)
	if err != nil {
		return err
	}
	failed := make(chan error, queues+1)
	for number := range uint16(queues) {
		l, err := open(number)
		if err != nil {
			return fmt.Errorf("queue %d: %w", number, err)
		}
		go func() { failed <- l.run() }()
	}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

// loop accepts the packets of one queue.
type loop struct {
	fd      int
	verdict []byte
	headers [batchLen]header
	vectors [batchLen]unix.Iovec
	buffers [batchLen][messageLen]byte
}

// header is struct mmsghdr of recvmmsg(2).
type header struct {
	unix.Msghdr
	length uint32
	_      [4]byte
}

// open binds a queue.
func open(number uint16) (*loop, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	l := &loop{fd: fd, verdict: message(verdictMessage, number, netlink.Attribute{Type: verdictHeader, Data: verdictOn(0)})}
	for i := range l.headers {
		l.vectors[i].Base = &l.buffers[i][0]
		l.vectors[i].SetLen(messageLen)
		l.headers[i].Iov = &l.vectors[i]
		l.headers[i].SetIovlen(1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferLen); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	for _, option := range []int{unix.NETLINK_NO_ENOBUFS, unix.NETLINK_CAP_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	command := []byte{bind, 0, 0, 0}
	params := append(binary.BigEndian.AppendUint32(nil, 0), copyMeta)
	for _, attributes := range [][]netlink.Attribute{
		{{Type: configCommand, Data: command}},
		{
			{Type: configParams, Data: params},
			{Type: configLen, Data: binary.BigEndian.AppendUint32(nil, queueLen)},
			{Type: configMask, Data: binary.BigEndian.AppendUint32(nil, flagGSO)},
			{Type: configFlags, Data: binary.BigEndian.AppendUint32(nil, flagGSO)},
		},
	} {
		if err := l.configure(message(configMessage, number, attributes...)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// message returns a message about a queue.
func message(kind, queue uint16, attributes ...netlink.Attribute) []byte {
	body, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		panic(err) // all parts are constant
	}
	m := make([]byte, 20, 20+len(body))
	binary.NativeEndian.PutUint32(m[0:], uint32(cap(m)))
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST)
	binary.BigEndian.PutUint16(m[18:], queue)
	return append(m, body...)
}

// verdictOn returns a message that accepts all packets up to id.
func verdictOn(id uint32) []byte {
	const accept = 1 // NF_ACCEPT
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, accept), id)
}

// configure sends a message and reads the kernel's answer. It ignores packets that arrive
// before: the verdict on later packets accepts them too.
func (l *loop) configure(m []byte) error {
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(l.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(l.fd, answer, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
			continue
		}
		if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
			return unix.Errno(-code)
		}
		return nil
	}
}

// run accepts packets.
func (l *loop) run() error {
	runtime.LockOSThread()
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(l.fd), uintptr(unsafe.Pointer(&l.headers[0])), batchLen, unix.MSG_WAITFORONE, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return os.NewSyscallError("recvmmsg", errno)
		}
		copy(l.verdict[len(l.verdict)-4:], l.buffers[n-1][idAt:idAt+4])
		if err := unix.Sendto(l.fd, l.verdict, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return os.NewSyscallError("sendto", err)
		}
	}
}
