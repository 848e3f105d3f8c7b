package load

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	firstPort = 1024 // lowest source port
	ports     = 1<<16 - firstPort

	// SinkPorts is how many ports, from its first one up, a Sink listens on. With
	// the source ports they make a quarter of a million flows.
	SinkPorts = 4

	batchLen = 64 // datagrams per system call

	udpHeaderLen = 8
	datagramLen  = udpHeaderLen + 4
)

// Flows sends UDP datagrams of which each is a new flow: another source port, and
// after all of them another destination port. It is for one goroutine.
type Flows struct {
	netns string
	to    netip.AddrPort // the first destination port
	conn  *net.IPConn
	batch []ipv4.Message
	next  int // number of the next flow
}

// OpenFlows opens a sender inside a namespace, towards the SinkPorts ports from
// that of to up.
func OpenFlows(netns string, to netip.AddrPort) (*Flows, error) {
	f := &Flows{netns: netns, to: to, batch: make([]ipv4.Message, batchLen)}
	for i := range f.batch {
		datagram := make([]byte, datagramLen)
		binary.BigEndian.PutUint16(datagram[4:], datagramLen)
		f.batch[i].Buffers = [][]byte{datagram} // checksum 0: there is none
	}
	err := Inside(netns, func() (err error) {
		f.conn, err = net.DialIP("ip4:udp", nil, &net.IPAddr{IP: to.Addr().AsSlice()})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a sender of UDP flows: %w", err)
	}
	return f, nil
}

// Close closes the socket.
func (f *Flows) Close() error { return f.conn.Close() }

// Send sends count datagrams, perSecond of them each second or, if that is 0, as
// fast as it can, and returns when it began. It sends from a raw socket, so that a
// flow costs the sender next to nothing.
func (f *Flows) Send(count, perSecond int) (began time.Time, err error) {
	conn := ipv4.NewPacketConn(f.conn)
	began = time.Now()
	for sent := 0; sent < count; {
		if perSecond > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(sent) * time.Second / time.Duration(perSecond))))
		}
		batch := f.batch[:min(batchLen, count-sent)]
		f.address(batch)
		n, err := conn.WriteBatch(batch, 0)
		if err != nil {
			return began, fmt.Errorf("send UDP flow %d of %d: %w", sent+1, count, err)
		}
		f.next += n
		sent += n
	}
	return began, nil
}

// address makes the datagrams of a batch the next flows.
func (f *Flows) address(batch []ipv4.Message) {
	for i := range batch {
		from, to := f.ports(f.next + i)
		header := batch[i].Buffers[0]
		binary.BigEndian.PutUint16(header[0:], from)
		binary.BigEndian.PutUint16(header[2:], to)
	}
}

// ports returns the ports of a flow.
func (f *Flows) ports(flow int) (from, to uint16) {
	return uint16(firstPort + flow%ports), f.to.Port() + uint16(flow/ports%SinkPorts)
}

// SendFromSockets sends count datagrams as fast as it can, each from a socket of its
// own, as clients do, and returns when it began.
func (f *Flows) SendFromSockets(count int) (began time.Time, err error) {
	err = Inside(f.netns, func() error {
		began = time.Now()
		for sent := range count {
			if err := f.sendFromSocket(); err != nil {
				return fmt.Errorf("send UDP flow %d of %d: %w", sent+1, count, err)
			}
		}
		return nil
	})
	return began, err
}

func (f *Flows) sendFromSocket() error {
	from, to := f.ports(f.next)
	f.next++
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(from)}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(f.to.Addr(), to))); err != nil {
		return os.NewSyscallError("connect", err)
	}
	_, err = unix.Write(fd, make([]byte, datagramLen-udpHeaderLen))
	return os.NewSyscallError("write", err)
}
