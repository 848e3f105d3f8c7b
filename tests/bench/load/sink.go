package load

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// sinkBuffer holds the datagrams of a whole run, so that none is lost behind the
// hop that is measured.
const sinkBuffer = 64 << 20

// Sink counts the datagrams that arrive at its ports.
type Sink struct {
	conns    []*net.UDPConn
	readers  sync.WaitGroup
	received atomic.Int64
	last     atomic.Int64 // when the latest arrived, in nanoseconds since start
	start    time.Time
}

// OpenSink listens inside a namespace on the SinkPorts ports from that of at up.
func OpenSink(netns string, at netip.AddrPort) (*Sink, error) {
	s := &Sink{start: time.Now()}
	err := Inside(netns, func() error {
		for i := range uint16(SinkPorts) {
			conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), at.Port()+i)))
			if err != nil {
				return err
			}
			s.conns = append(s.conns, conn)
			if err := enlarge(conn); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a sink of UDP flows: %w", err), s.Close())
	}
	for _, conn := range s.conns {
		s.readers.Go(func() { s.read(conn) })
	}
	return s, nil
}

// enlarge gives a socket the buffer, beyond what the machine allows to others than
// root.
func enlarge(conn *net.UDPConn) error {
	return control(conn, func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sinkBuffer))
	})
}

func control(conn *net.UDPConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) { result = f(int(fd)) })
	return errors.Join(err, result)
}

// read counts until conn is closed.
func (s *Sink) read(conn *net.UDPConn) {
	batch := make([]ipv4.Message, batchLen)
	for i := range batch {
		batch[i].Buffers = [][]byte{make([]byte, datagramLen)}
	}
	packets := ipv4.NewPacketConn(conn)
	for {
		n, err := packets.ReadBatch(batch, 0)
		if err != nil {
			return
		}
		s.last.Store(int64(time.Since(s.start)))
		s.received.Add(int64(n))
	}
}

// Received returns how many datagrams have arrived, and when the latest did.
func (s *Sink) Received() (count int, last time.Time) {
	count = int(s.received.Load())
	return count, s.start.Add(time.Duration(s.last.Load()))
}

// Waiting reports whether datagrams have arrived that are not counted yet.
func (s *Sink) Waiting() (bool, error) {
	waiting := false
	for _, conn := range s.conns {
		err := control(conn, func(fd int) error {
			n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
			waiting = waiting || n > 0
			return os.NewSyscallError("ioctl", err)
		})
		if err != nil {
			return false, err
		}
	}
	return waiting, nil
}

// Close closes the ports and waits for their readers.
func (s *Sink) Close() error {
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	s.readers.Wait()
	return errors.Join(errs...)
}
