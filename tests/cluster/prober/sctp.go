package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/sctp"
)

// Client ports, as Linux has them.
const (
	firstPort = 32768
	lastPort  = 60999
)

// resendAfter is how long a client waits until it sends its INIT again: as TCP does with its SYN.
const resendAfter = time.Second

// ports counts the source ports that were used. It begins anywhere: nodes remember the flows of an
// earlier process for seconds, and process numbers repeat in containers that share a network.
var ports = func() *atomic.Uint32 {
	var begin [4]byte
	_, _ = rand.Read(begin[:]) // never fails
	p := new(atomic.Uint32)
	p.Store(binary.NativeEndian.Uint32(begin[:]))
	return p
}()

// associate sends an INIT from a new port and waits for the INIT ACK. It uses a raw socket, because
// the kernel may lack SCTP; where it has it, the kernel aborts what it does not know, which does not
// matter here.
func associate(address netip.AddrPort, deadline time.Time) error {
	a, err := newAssociation(address, deadline)
	if err != nil {
		return err
	}
	defer a.conn.Close()
	if err := a.establish(deadline, resendAfter); err != nil {
		return fmt.Errorf("sctp %s: %w", address, err)
	}
	return nil
}

// An association is one that the client begins.
type association struct {
	conn *net.IPConn
	ipv4 bool
	init sctp.Packet
}

func newAssociation(address netip.AddrPort, deadline time.Time) (*association, error) {
	conn, err := dialRaw(address.Addr(), deadline)
	if err != nil {
		return nil, err
	}
	return &association{conn: conn, ipv4: address.Addr().Is4(), init: sctp.Packet{
		Type:    sctp.Init,
		SrcPort: firstPort + uint16(ports.Add(1)%(lastPort-firstPort+1)),
		DstPort: address.Port(),
		Tag:     sctp.NewTag(),
	}}, nil
}

// establish sends the INIT, again after each interval, until it is answered.
func (a *association) establish(deadline time.Time, interval time.Duration) error {
	if err := a.conn.SetDeadline(deadline); err != nil {
		return err
	}
	for {
		if err := a.send(); err != nil {
			return err
		}
		until := time.Now().Add(interval)
		if until.After(deadline) {
			until = deadline
		}
		err := a.receive(until)
		if !errors.Is(err, os.ErrDeadlineExceeded) || until.Equal(deadline) {
			return err
		}
	}
}

// dialRaw returns a raw socket that sends to an address and receives from it. The kernel puts its
// IPv4 header before what it receives.
func dialRaw(address netip.Addr, deadline time.Time) (*net.IPConn, error) {
	dialer := net.Dialer{Deadline: deadline, Control: queueErrors(address)}
	conn, err := dialer.Dial(rawNetwork(address.Is4()), address.String())
	if err != nil {
		return nil, rawError(err)
	}
	return conn.(*net.IPConn), nil
}

// send sends the INIT. The call may fail because of an ICMP error about another attempt to the same
// address, and is repeated then.
func (a *association) send() error {
	for {
		_, err := a.conn.Write(a.init.Bytes())
		if err == nil {
			return nil
		}
		queued, rejected := a.rejected()
		if rejected != nil {
			return rejected
		}
		if !queued {
			return err
		}
	}
}

// receive waits for the INIT ACK or for an ICMP error. A raw socket also gets what is for others. The
// kernel reports nothing but ICMP errors to it.
func (a *association) receive(until time.Time) error {
	if err := a.conn.SetReadDeadline(until); err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	for {
		n, err := a.conn.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			if _, rejected := a.rejected(); rejected != nil {
				return rejected
			}
			continue // it was about another attempt
		}
		if p, ok := sctp.Parse(afterHeader(buffer[:n], a.ipv4)); ok && p.Answers(a.init) {
			return nil
		}
	}
}
