package load

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
)

const (
	firstPort = 1024 // lowest source port

	// Ports is the number of consecutive datagrams that are all new flows, whatever their
	// destinations, because each has another source port.
	Ports = 1<<16 - firstPort

	batchLen = 64 // datagrams per system call

	udpHeaderLen = 8
	datagramLen  = udpHeaderLen + 4
)

// Flows sends UDP datagrams, each of which is a new flow. Only one goroutine may use it.
type Flows struct {
	conn  *net.IPConn
	batch []ipv4.Message
	next  int // number of the next flow
}

// OpenFlows opens a sender inside a namespace.
func OpenFlows(netns string) (*Flows, error) {
	f := &Flows{batch: make([]ipv4.Message, batchLen)}
	for i := range f.batch {
		datagram := make([]byte, datagramLen)
		binary.BigEndian.PutUint16(datagram[4:], datagramLen)
		f.batch[i].Buffers = [][]byte{datagram} // checksum 0: none
		f.batch[i].Addr = &net.IPAddr{IP: make(net.IP, net.IPv4len)}
	}
	err := Inside(netns, func() (err error) {
		f.conn, err = net.ListenIP("ip4:udp", nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a sender of UDP flows: %w", err)
	}
	return f, nil
}

// Close closes the socket.
func (f *Flows) Close() error { return f.conn.Close() }

// One returns a function for Send that always returns to.
func One(to netip.AddrPort) func() netip.AddrPort { return func() netip.AddrPort { return to } }

// Several returns a function for Send. It returns the address of to for one flow from each
// source port, then the next address, n addresses in all.
func Several(to netip.AddrPort, n int) func() netip.AddrPort {
	i := -1
	return func() netip.AddrPort {
		i++
		return netip.AddrPortFrom(to.Addr(), to.Port()+uint16(i/Ports%n))
	}
}

// Send sends count datagrams to the destinations that to returns, perSecond each second or,
// if that is 0, as fast as it can, and returns how long it took. It uses a raw socket, so
// that a flow costs the sender next to nothing.
func (f *Flows) Send(to func() netip.AddrPort, count, perSecond int) (took time.Duration, err error) {
	conn := ipv4.NewPacketConn(f.conn)
	began := time.Now()
	for sent := 0; sent < count; {
		if perSecond > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(sent) * time.Second / time.Duration(perSecond))))
		}
		batch := f.batch[:min(batchLen, count-sent)]
		f.address(batch, to)
		for left := batch; len(left) > 0; {
			n, err := conn.WriteBatch(left, 0)
			if err != nil {
				return 0, fmt.Errorf("send UDP flow %d of %d: %w", sent+1, count, err)
			}
			left = left[n:]
		}
		sent += len(batch)
	}
	return time.Since(began), nil
}

// address turns the datagrams of a batch into the next flows.
func (f *Flows) address(batch []ipv4.Message, to func() netip.AddrPort) {
	for i := range batch {
		at := to()
		addr := at.Addr().As4()
		copy(batch[i].Addr.(*net.IPAddr).IP, addr[:])
		header := batch[i].Buffers[0]
		binary.BigEndian.PutUint16(header[0:], uint16(firstPort+f.next%Ports))
		binary.BigEndian.PutUint16(header[2:], at.Port())
		f.next++
	}
}
