package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Family is an address family.
type Family uint8

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "IPv4" or "IPv6".
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// Proto is a protocol to probe with.
type Proto string

// The protocols.
const (
	TCP  Proto = "TCP"
	UDP  Proto = "UDP"
	ICMP Proto = "ICMP" // echo request and reply, ICMPv6 for IPv6 addresses
)

// Outcome is the outcome of a probe.
type Outcome uint8

// The outcomes. Only Connected means that the other end answered.
const (
	TimedOut  Outcome = iota // no answer
	Connected                // the other end answered
	Refused                  // a reset or an ICMP error
)

// String returns, for example, "timed out".
func (o Outcome) String() string {
	return [...]string{"timed out", "connected", "refused"}[o]
}

// Answer is the result of a probe.
type Answer struct {
	Outcome Outcome
	// From is the name of the host that answered. Echo replies do not contain it.
	From string
}

// Probe tries to reach an address from the host once, and waits for an answer until the
// timeout or the end of ctx. It returns an error if the probe could not be made at all.
// ICMP ignores the port.
func (h *Host) Probe(ctx context.Context, proto Proto, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := h.Dial(ctx, proto, to)
	if err != nil {
		return answerOf(err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	switch proto {
	case UDP:
		_, err = conn.Write([]byte("name?"))
	case ICMP:
		_, err = conn.Write(echoRequest(to.Addr()))
	}
	if err != nil {
		return answerOf(err)
	}
	buffer := make([]byte, 512)
	n, err := conn.Read(buffer)
	if err != nil {
		return answerOf(err)
	}
	if proto == ICMP {
		return Answer{Outcome: Connected}, nil
	}
	name, _, _ := strings.Cut(string(buffer[:n]), "\n")
	return Answer{Outcome: Connected, From: name}, nil
}

// answerOf distinguishes a failed connection from a probe that could not be made.
func answerOf(err error) (Answer, error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return Answer{Outcome: TimedOut}, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET),
		errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		return Answer{Outcome: Refused}, nil
	default:
		return Answer{}, err
	}
}

// echoRequest returns an ICMP echo request. The kernel fills in the rest.
func echoRequest(to netip.Addr) []byte {
	kind := byte(8)
	if to.Is6() {
		kind = 128
	}
	return []byte{kind, 0, 0, 0, 0, 0, 0, 1, 'l', 'a', 'b'}
}

// SocketOption changes a socket before it is connected.
type SocketOption func(fd int) error

// Dial opens a connection from the host. UDP and ICMP sockets are connected to the address,
// so that errors of the network are reported.
func (h *Host) Dial(ctx context.Context, proto Proto, to netip.AddrPort, options ...SocketOption) (net.Conn, error) {
	fd, err := h.socket(proto, to.Addr())
	if err != nil {
		return nil, err
	}
	for _, option := range options {
		if err := option(fd); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
	return connect(ctx, fd, to)
}

// socket opens a socket that stays in the namespace.
func (h *Host) socket(proto Proto, addr netip.Addr) (fd int, err error) {
	kind, number := unix.SOCK_STREAM, 0
	switch proto {
	case UDP:
		kind = unix.SOCK_DGRAM
	case ICMP:
		kind, number = unix.SOCK_DGRAM, unix.IPPROTO_ICMP
		if addr.Is6() {
			number = unix.IPPROTO_ICMPV6
		}
	}
	domain := unix.AF_INET
	if addr.Is6() {
		domain = unix.AF_INET6
	}
	err = h.ns.do(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, number)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}

// connect connects a socket and waits for it outside of the namespace's thread.
func connect(ctx context.Context, fd int, to netip.AddrPort) (net.Conn, error) {
	err := unix.Connect(fd, sockaddr(to))
	file := os.NewFile(uintptr(fd), to.String())
	defer file.Close() // net.FileConn duplicates the descriptor
	if errors.Is(err, unix.EINPROGRESS) {
		err = waitConnected(ctx, file)
	}
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", to, err)
	}
	return net.FileConn(file)
}

// waitConnected waits for the end of a connect in progress.
func waitConnected(ctx context.Context, file *os.File) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := file.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) (done bool) {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
		case code != 0:
			result = unix.Errno(code)
		default:
			_, err := unix.Getpeername(int(fd))
			return err == nil // otherwise still in progress
		}
		return true
	})
	return errors.Join(err, result)
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}
