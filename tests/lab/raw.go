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

// SendIP sends an IP packet, header included, as it is; of an IPv4 header the
// kernel fills in total length and checksum. The path is that of the
// destination in the header.
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

// destination reads the destination address of an IP packet.
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

// Capture counts packets that arrive at a host, whatever its stack makes of them.
type Capture struct{ count atomic.Int64 }

// Count returns how many packets have matched.
func (c *Capture) Count() int { return int(c.count.Load()) }

// Capture starts to count the packets arriving at the host that match. It sees
// them from the IP header on, until the host is closed.
func (h *Host) Capture(match func(packet []byte) bool) (*Capture, error) {
	var fd int
	err := h.ns.do(func() (err error) {
		all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", h.Name, err)
	}
	file := os.NewFile(uintptr(fd), "capture on "+h.Name)
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	h.serve(file)
	c := &Capture{}
	go c.read(raw, match)
	return c, nil
}

// rawConn is the part of syscall.RawConn that is needed.
type rawConn interface {
	Read(f func(fd uintptr) (done bool)) error
}

// read counts until the socket is closed with its host.
func (c *Capture) read(raw rawConn, match func([]byte) bool) {
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
		link, ok := from.(*unix.SockaddrLinklayer)
		if ok && link.Pkttype != unix.PACKET_OUTGOING && match(buffer[:n]) {
			c.count.Add(1)
		}
	}
}
