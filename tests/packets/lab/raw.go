package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// SendIP sends an IP packet including its header. In an IPv4 header the kernel fills in
// total length and checksum. The packet is routed to the destination in the header.
func (h *Host) SendIP(packet []byte) error {
	to, domain, err := destination(packet)
	if err != nil {
		return err
	}
	return h.ns.do(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
			return fmt.Errorf("send %d bytes to %s: %w", len(packet), to, err)
		}
		return nil
	})
}

// destination returns the destination address of an IP packet.
func destination(packet []byte) (netip.Addr, int, error) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[16:20])), unix.AF_INET, nil
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[24:40])), unix.AF_INET6, nil
	default:
		return netip.Addr{}, 0, errors.New("no IP header to send")
	}
}

// Capture counts packets that arrive at a host, accepted or not.
type Capture struct{ count atomic.Int64 }

// Count returns how many packets have matched.
func (c *Capture) Count() int { return int(c.count.Load()) }

// Capture counts the packets arriving at the host that match. It sees them from the IP
// header on, before any hook, until the host is closed.
func (h *Host) Capture(match func(packet []byte) bool) (*Capture, error) {
	c := &Capture{}
	all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	err := h.receive(unix.AF_PACKET, unix.SOCK_DGRAM, all, nil, func(packet []byte, from unix.Sockaddr) {
		link, ok := from.(*unix.SockaddrLinklayer)
		if ok && link.Pkttype != unix.PACKET_OUTGOING && match(packet) {
			c.count.Add(1)
		}
	})
	return c, err
}

// Receive calls got with the addresses and the payload of each packet of an IP protocol that
// arrives at one of the host's addresses, until the host is closed. It sees packets after the
// netfilter hooks, even if the kernel does not support the protocol.
func (h *Host) Receive(protocol int, got func(src, dst netip.Addr, payload []byte)) error {
	for _, addr := range h.Addrs {
		domain, header := unix.AF_INET6, func([]byte) int { return 0 } // IPv6 sockets do not return the header
		if addr.Is4() {
			domain, header = unix.AF_INET, func(packet []byte) int { return int(packet[0]&15) * 4 }
		}
		at := sockaddr(netip.AddrPortFrom(addr, 0))
		err := h.receive(domain, unix.SOCK_RAW, protocol, at, func(packet []byte, from unix.Sockaddr) {
			got(address(from), addr, packet[header(packet):])
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// address returns the address of a packet's source.
func address(from unix.Sockaddr) netip.Addr {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr)
	}
	return netip.Addr{}
}

// receive calls got with every packet of a socket, until the host is closed.
func (h *Host) receive(domain, kind, protocol int, at unix.Sockaddr, got func(packet []byte, from unix.Sockaddr)) error {
	var fd int
	err := h.ns.do(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return fmt.Errorf("receive on %s: %w", h.Name, err)
	}
	file := os.NewFile(uintptr(fd), "packets of "+h.Name)
	if at != nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, at))
	}
	raw, rawErr := file.SyscallConn()
	if err := errors.Join(err, rawErr); err != nil {
		return fmt.Errorf("receive on %s: %w", h.Name, errors.Join(err, file.Close()))
	}
	h.serve(file)
	go readAll(raw, got)
	return nil
}

// rawConn is the part of syscall.RawConn that readAll needs.
type rawConn interface {
	Read(f func(fd uintptr) (done bool)) error
}

// readAll reads until the socket is closed with its host.
func readAll(raw rawConn, got func(packet []byte, from unix.Sockaddr)) {
	buffer := make([]byte, 64<<10)
	for {
		var n int
		var from unix.Sockaddr
		var result error
		err := raw.Read(func(fd uintptr) bool {
			n, from, result = unix.Recvfrom(int(fd), buffer, 0)
			return !errors.Is(result, unix.EAGAIN)
		})
		if err != nil || result != nil && !errors.Is(result, unix.EINTR) {
			return
		}
		if result == nil {
			got(buffer[:n], from)
		}
	}
}
