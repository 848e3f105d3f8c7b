package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// patience is how long a client may be silent.
const patience = 10 * time.Second

// A server sends back what it receives.
type server struct {
	tcp  net.Listener
	udp  *net.UDPConn
	sctp []*sctpServer // none unless asked for

	destination destination // of a datagram
}

// listen opens the same port for TCP, UDP and, withSCTP, SCTP, of both address families.
func listen(address string, withSCTP bool) (*server, error) {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	s := &server{tcp: tcp, udp: udp.(*net.UDPConn)}
	s.destination, err = receiveDestinations(s.udp, s.udp.LocalAddr().(*net.UDPAddr).IP)
	if err == nil && withSCTP {
		s.sctp, err = listenSCTP(tcp.Addr().(*net.TCPAddr))
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) close() error {
	errs := []error{s.tcp.Close(), s.udp.Close()}
	for _, c := range s.sctp {
		errs = append(errs, c.conn.Close())
	}
	return errors.Join(errs...)
}

// serve answers on several addresses until the context ends, or one of them cannot be
// served.
func serve(ctx context.Context, addresses []string, withSCTP bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			defer cancel()
			s, err := listen(address, withSCTP)
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
	ended := make(chan error, 2+len(s.sctp))
	go func() { ended <- s.serveTCP() }()
	go func() { ended <- s.serveUDP() }()
	for _, c := range s.sctp {
		go func() { ended <- c.serve() }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	return errors.Join(err, s.close())
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
		n, size, _, from, err := s.udp.ReadMsgUDPAddrPort(buffer, s.destination.message)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		// An answer that cannot be sent is one that the client does not get.
		_, _, _ = s.udp.WriteMsgUDPAddrPort(buffer[:n], s.destination.asSource(size), from)
	}
}
