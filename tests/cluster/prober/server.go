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
	tcp net.Listener
	udp net.PacketConn
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
	return &server{tcp: tcp, udp: udp}, nil
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
		n, from, err := s.udp.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		// An answer that cannot be sent is one that the client does not get.
		_, _ = s.udp.WriteTo(buffer[:n], from)
	}
}
