package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/nlattr"
)

const (
	// bufferSize has room for a transaction with all elements that one node can have, and
	// for one answer to each. With the default size, a transaction of 8,000 elements fits.
	bufferSize = 8 << 20
	// datagramSize is above the size of the kernel's datagrams of answers.
	datagramSize = 1 << 16
)

// ErrGeneration means that a transaction was planned for another generation of nftables than
// the current one. Nothing has changed.
var ErrGeneration = errors.New("nftables has changed meanwhile")

// Fault is why the kernel refused one message of a transaction.
type Fault struct {
	// Message is its index in the batch.
	Message int
	// Errno is the kernel's error.
	Errno unix.Errno
	// Text is what the kernel says beyond it, mostly nothing.
	Text string
	// Offset is where in the message the attribute at fault begins, 0 if unknown. See
	// Batch.Offset.
	Offset int
}

// Conn is a socket from which transactions are sent. All of its transactions have its port,
// and no other socket of the network namespace can have it: the kernel names the port when it
// notifies of a commit. Its methods must not be called by two goroutines at the same time.
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
		// The answer to a message that is refused need not contain the message.
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

// Commit sends b. Without an error and without faults all of it is committed. With faults
// nothing is, and there is one for each message that the kernel refused. ErrGeneration and
// other errors of the whole transaction mean that nothing is committed either; an error of
// the socket leaves that open, and the Conn must be closed.
//
// Commit waits until the kernel has handled the transaction, which it does one after the other
// for all processes. It cannot be interrupted meanwhile.
func (c *Conn) Commit(b *Batch) ([]Fault, error) {
	if err := c.send(b.finish()); err != nil {
		return nil, err
	}
	var faults []Fault
	for {
		n, err := c.receive()
		if errors.Is(err, unix.EAGAIN) {
			return faults, nil // the kernel has answered what it refused before send returned
		}
		if errors.Is(err, unix.ENOBUFS) {
			return nil, errors.New("the kernel refuses it, and its reasons did not fit into the buffer")
		}
		if err != nil {
			return nil, fmt.Errorf("receive the kernel's answer: %w", err)
		}
		for f := range faultsIn(c.answers[:n]) {
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

// drain discards the answers that are left of a transaction.
func (c *Conn) drain() error {
	for {
		_, err := c.receive()
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

// receive reads a datagram of answers, without waiting for one.
func (c *Conn) receive() (n int, err error) {
	var result error
	err = c.raw.Control(func(fd uintptr) {
		for {
			n, _, result = unix.Recvfrom(int(fd), c.answers, unix.MSG_DONTWAIT)
			if result != unix.EINTR {
				return
			}
		}
	})
	return n, errors.Join(err, result)
}

// Attributes of an extended answer, linux/netlink.h.
const (
	nlmsgerrAttrMsg  = 1
	nlmsgerrAttrOffs = 2
)

// faultsIn yields the errors in a datagram of answers. Message is the index of the message in
// its batch, and -1 is the message that begins it.
func faultsIn(datagram []byte) func(yield func(Fault) bool) {
	return func(yield func(Fault) bool) {
		for m := range Messages(datagram) {
			const errnoLen = 4
			if m.Kind != unix.NLMSG_ERROR || len(m.Body) < errnoLen+unix.NLMSG_HDRLEN {
				continue
			}
			f := Fault{Message: int(m.Sequence) - 1, Errno: unix.Errno(-int32(binary.NativeEndian.Uint32(m.Body)))}
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

// Message is a message of netlink.
type Message struct {
	Kind     uint16
	Sequence uint32
	Port     uint32
	// Body is part of the datagram.
	Body []byte
}

// Messages yields the messages of a datagram up to one that is malformed.
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
