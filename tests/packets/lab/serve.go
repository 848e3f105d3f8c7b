package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Serve answers on ports of all the host's addresses, by TCP and UDP, until the host is
// closed. It sends a TCP client the host's name and a line feed, and then echoes. It
// answers each UDP datagram with the name.
func (h *Host) Serve(ports ...uint16) error {
	for _, addr := range h.Addrs {
		for _, port := range ports {
			at := netip.AddrPortFrom(addr, port)
			listener, err := h.Listen(at)
			if err != nil {
				return err
			}
			go h.serveTCP(listener)
			conn, err := h.ListenPacket(at)
			if err != nil {
				return err
			}
			go h.serveUDP(conn)
		}
	}
	return nil
}

// Sink counts the datagrams that arrive at a UDP port and answers none.
type Sink struct {
	received atomic.Int64
}

// Received returns how many datagrams have arrived.
func (s *Sink) Received() int { return int(s.received.Load()) }

// Sink opens a UDP port on all of the host's addresses.
func (h *Host) Sink(port uint16) (*Sink, error) {
	sink := &Sink{}
	for _, addr := range h.Addrs {
		conn, err := h.ListenPacket(netip.AddrPortFrom(addr, port))
		if err != nil {
			return nil, err
		}
		go func() {
			buffer := make([]byte, 64<<10)
			for {
				if _, _, err := conn.ReadFrom(buffer); err != nil {
					return // closed with the host
				}
				sink.received.Add(1)
			}
		}()
	}
	return sink, nil
}

// Listen opens a TCP port until the host is closed.
func (h *Host) Listen(at netip.AddrPort) (net.Listener, error) {
	var listener net.Listener
	err := h.ns.do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	h.serve(listener)
	return listener, nil
}

// ListenPacket opens a UDP port until the host is closed.
func (h *Host) ListenPacket(at netip.AddrPort) (*net.UDPConn, error) {
	var conn *net.UDPConn
	err := h.ns.do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	h.serve(conn)
	return conn, enlarge(conn)
}

// receiveBuffer is large enough for a flood, so that a missing packet was lost on its way.
const receiveBuffer = 32 << 20

// enlarge sets that buffer, which may exceed the limit for users other than root.
func enlarge(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		result = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", result))
}

func (h *Host) serveTCP(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed with the host
		}
		go func() {
			defer conn.Close()
			if _, err := io.WriteString(conn, h.Name+"\n"); err == nil {
				io.Copy(conn, conn)
			}
		}()
	}
}

func (h *Host) serveUDP(conn *net.UDPConn) {
	buffer := make([]byte, 64<<10)
	for {
		_, client, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return // closed with the host
		}
		conn.WriteToUDPAddrPort([]byte(h.Name), client)
	}
}
