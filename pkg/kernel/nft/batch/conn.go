package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

const (
	// bufferSize has room for a transaction with all elements of one node, and for an answer
	// to each of them. The default size has room for 8,000 elements.
	bufferSize = 8 << 20
	// datagramSize is larger than any datagram of answers from the kernel.
	datagramSize = 1 << 16
)

// ErrGeneration means that a transaction was planned for another generation of nftables than the
// current one. Nothing was committed.
var ErrGeneration = errors.New("nftables has changed meanwhile")

// Fault is the reason why the kernel refused one message of a transaction.
type Fault struct {
	// Message is its index in the batch.
	Message int
	// Errno is the kernel's error.
	Errno unix.Errno
	// Text is the kernel's explanation, which is mostly empty.
	Text string
	// Offset is that of the faulty attribute in the message, 0 if unknown. See Batch.Offset.
	Offset int
}

// Conn is a socket that sends transactions. No other socket of the network namespace has its port,
// and the kernel names the port when it notifies of a commit. Its methods must not be called by
// two goroutines at the same time.
type Conn struct {
	conn    *netlink.Conn
	raw     syscall.RawConn
	answers []byte
}

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	raw, err := conn.SyscallConn()
	err = errors.Join(err, conn.SetReadBuffer(bufferSize), conn.SetWriteBuffer(bufferSize),
		// Answers need not repeat the refused message.
		conn.SetOption(netlink.CapAcknowledge, true), conn.SetOption(netlink.ExtendedAcknowledge, true))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("set up a netlink socket: %w", err)
	}
	return &Conn{conn: conn, raw: raw, answers: make([]byte, datagramSize)}, nil
}

// Port is the port of the socket.
func (c *Conn) Port() uint32 { return c.conn.PID() }

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

// Commit sends b. Without an error and without faults the whole transaction is committed. If the
// kernel refuses messages, it commits nothing, and Commit returns a Fault for each of them. After
// ErrGeneration and other errors about the whole transaction nothing is committed. After an error
// of the socket that is unknown, and the Conn must be closed.
//
// Commit waits until the kernel has handled the transaction, and cannot be interrupted. The kernel
// serializes the transactions of all processes.
func (c *Conn) Commit(b *Batch) ([]Fault, error) {
	if err := c.send(b.finish()); err != nil {
		return nil, err
	}
	var faults []Fault
	for {
		answers, err := Receive(c.raw, c.answers)
		if errors.Is(err, unix.EAGAIN) {
			return faults, nil // the kernel sends all faults before send returns
		}
		if errors.Is(err, unix.ENOBUFS) {
			return nil, errors.New("the kernel refused the transaction, and its reasons did not fit into the buffer")
		}
		if err != nil {
			return nil, fmt.Errorf("receive the kernel's answer: %w", err)
		}
		for f := range faultsIn(answers) {
			switch {
			case f.Message >= 0 && f.Message < b.messages:
				faults = append(faults, f)
			case f.Errno == unix.ERESTART:
				return nil, errors.Join(ErrGeneration, c.drain())
			default:
				return nil, errors.Join(f.Errno, c.drain())
			}
		}
	}
}

// drain discards the remaining answers to a transaction.
func (c *Conn) drain() error {
	for {
		_, err := Receive(c.raw, c.answers)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return fmt.Errorf("receive the kernel's answer: %w", err)
		}
	}
}

func (c *Conn) send(messages []byte) error {
	var result error
	err := c.raw.Write(func(fd uintptr) bool {
		result = unix.Sendto(int(fd), messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return result != unix.EAGAIN && result != unix.EINTR
	})
	switch {
	case err != nil:
		return err
	case errors.Is(result, unix.EMSGSIZE):
		return fmt.Errorf("a transaction of %d bytes is larger than the socket's buffer (net.core.wmem_max): %w", len(messages), result)
	case result != nil:
		return fmt.Errorf("send a transaction: %w", result)
	}
	return nil
}

// Receive reads a datagram that the kernel has sent already, EAGAIN if there is none.
func Receive(raw syscall.RawConn, buffer []byte) (datagram []byte, err error) {
	var n int
	var result error
	err = raw.Control(func(fd uintptr) {
		for {
			n, _, result = unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT)
			if result != unix.EINTR {
				return
			}
		}
	})
	return buffer[:max(n, 0)], errors.Join(err, result)
}

// Attributes of an extended answer, linux/netlink.h.
const (
	nlmsgerrAttrMsg  = 1
	nlmsgerrAttrOffs = 2
)

// faultsIn yields the errors in a datagram of answers. A Fault with Message -1 is about the
// message that begins the batch.
func faultsIn(datagram []byte) func(yield func(Fault) bool) {
	return func(yield func(Fault) bool) {
		for m := range Messages(datagram) {
			const errnoLen = 4
			if m.Kind != unix.NLMSG_ERROR || len(m.Body) < errnoLen+unix.NLMSG_HDRLEN {
				continue
			}
			f := Fault{Message: int(m.Sequence) - 1, Errno: m.Errno()}
			if f.Errno == 0 {
				continue
			}
			for kind, value := range nlattr.All(m.Body[errnoLen+unix.NLMSG_HDRLEN:]) {
				switch {
				case kind == nlmsgerrAttrMsg:
					f.Text = string(value[:max(0, len(value)-1)])
				case kind == nlmsgerrAttrOffs && len(value) == 4:
					f.Offset = int(binary.NativeEndian.Uint32(value))
				}
			}
			if !yield(f) {
				return
			}
		}
	}
}

// Message is a netlink message.
type Message struct {
	Kind     uint16
	Sequence uint32
	Port     uint32
	// Body is part of the datagram.
	Body []byte
}

// Errno returns the error of an NLMSG_ERROR, whose body has at least 4 bytes.
func (m Message) Errno() unix.Errno { return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Body))) }

// Messages yields the messages of a datagram up to the first malformed one.
func Messages(datagram []byte) func(yield func(Message) bool) {
	return func(yield func(Message) bool) {
		for len(datagram) >= unix.NLMSG_HDRLEN {
			length := int(binary.NativeEndian.Uint32(datagram))
			if length < unix.NLMSG_HDRLEN || length > len(datagram) {
				return
			}
			m := Message{
				Kind:     binary.NativeEndian.Uint16(datagram[4:]),
				Sequence: binary.NativeEndian.Uint32(datagram[8:]),
				Port:     binary.NativeEndian.Uint32(datagram[12:]),
				Body:     datagram[unix.NLMSG_HDRLEN:length],
			}
			if !yield(m) {
				return
			}
			datagram = datagram[min((length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(datagram)):]
		}
	}
}
