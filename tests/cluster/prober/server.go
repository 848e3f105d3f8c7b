package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// patience is how long a client may be silent.
const patience = 10 * time.Second

// A server sends back what it receives.
type server struct {
	tcp net.Listener
	udp *net.UDPConn

	// destination has room for what the kernel tells of a datagram, with the index of the interface
	// at ifindex.
	destination []byte
	ifindex     int
}

// listen opens the same port for TCP and for UDP, of both address families.
func listen(address string) (*server, error) {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	s := &server{tcp: tcp, udp: udp.(*net.UDPConn)}
	if err := s.receiveDestinations(); err != nil {
		return nil, errors.Join(err, tcp.Close(), udp.Close())
	}
	return s, nil
}

// receiveDestinations has the kernel tell the destination of each datagram to every address. The
// answer must come from there, and the kernel would choose the address of the interface that leads
// to the client: on a node, not that of the node.
func (s *server) receiveDestinations() error {
	address := s.udp.LocalAddr().(*net.UDPAddr).IP
	if !address.IsUnspecified() {
		return nil
	}
	level, option, size := syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO, syscall.SizeofInet6Pktinfo
	s.ifindex = syscall.CmsgLen(0) + syscall.SizeofInet6Pktinfo - 4
	if address.To4() != nil { // where IPv6 is off
		level, option, size = syscall.IPPROTO_IP, syscall.IP_PKTINFO, syscall.SizeofInet4Pktinfo
		s.ifindex = syscall.CmsgLen(0)
	}
	s.destination = make([]byte, syscall.CmsgSpace(size))
	raw, err := s.udp.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) { failure = syscall.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, os.NewSyscallError("setsockopt", failure))
}

// serve answers on several addresses until the context ends, or one of them cannot be
// served.
func serve(ctx context.Context, addresses []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			defer cancel()
			s, err := listen(address)
			if err == nil {
				err = s.serve(ctx)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serve answers until the context ends.
func (s *server) serve(ctx context.Context) error {
	ended := make(chan error, 2)
	go func() { ended <- s.serveTCP() }()
	go func() { ended <- s.serveUDP() }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	return errors.Join(err, s.tcp.Close(), s.udp.Close())
}

func (s *server) serveTCP() error {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go echo(conn)
	}
}

// echo ends with the client, or with its silence. Its errors are the client's.
func echo(conn net.Conn) {
	defer conn.Close()
	_, _ = io.Copy(conn, impatient{conn})
}

// impatient reads what comes within patience.
type impatient struct{ net.Conn }

func (i impatient) Read(p []byte) (int, error) {
	if err := i.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return i.Conn.Read(p)
}

func (s *server) serveUDP() error {
	buffer := make([]byte, 1500)
	for {
		n, size, _, from, err := s.udp.ReadMsgUDPAddrPort(buffer, s.destination)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if size > 0 { // the way back is that of any packet
			clear(s.destination[s.ifindex : s.ifindex+4])
		}
		// An answer that cannot be sent is one that the client does not get.
		_, _, _ = s.udp.WriteMsgUDPAddrPort(buffer[:n], s.destination[:size], from)
	}
}
