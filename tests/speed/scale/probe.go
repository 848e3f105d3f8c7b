package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/load"
)

const (
	firstPort     = 9000             // of the servers
	probeInterval = time.Millisecond // between two probes
	// patience is how long a probe may take to arrive. After that it counts as dropped until
	// it arrives.
	patience = 20 * time.Millisecond
	// agreeing is the number of consecutive probes that must have the same result.
	agreeing = 30
	// flipTimeout limits the time until a change takes effect.
	flipTimeout = 10 * time.Second

	// The kernel keeps a flow for half a minute. Source ports are reused after a minute.
	firstSourcePort, sourcePorts = 1024, 1<<16 - 1024
	udpHeaderLen                 = 8
	sequenceLen                  = 8
)

// prober probes continuously, with real packets, whether a client's new flows, or the
// packets of one flow, reach a server. Its methods may be called from any goroutine.
type prober struct {
	target netip.AddrPort
	ports  int // source ports, used in turn: with one, all probes are of one flow
	conn   *net.IPConn
	sink   *net.UDPConn

	mu     sync.Mutex
	sent   []time.Time // by number of the probe
	passed []bool
}

// newProber opens the sockets of client and server in their namespaces. Each prober has its
// own port: otherwise the kernel would know its flows from another prober.
func newProber(client, server string, target netip.AddrPort, ports int) (*prober, error) {
	p := &prober{target: target, ports: ports}
	err := load.Inside(server, func() (err error) {
		p.sink, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(p.target))
		return err
	})
	if err == nil {
		err = load.Inside(client, func() (err error) {
			p.conn, err = net.DialIP("ip4:udp", nil, &net.IPAddr{IP: target.Addr().AsSlice()})
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a prober: %w", err), p.close())
	}
	return p, nil
}

func (p *prober) close() error {
	var errs []error
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	if p.sink != nil {
		errs = append(errs, p.sink.Close())
	}
	return errors.Join(errs...)
}

// send sends a probe in each interval until ctx ends, each from the next port.
func (p *prober) send(ctx context.Context) error {
	datagram := make([]byte, udpHeaderLen+sequenceLen) // checksum 0: none
	binary.BigEndian.PutUint16(datagram[2:], p.target.Port())
	binary.BigEndian.PutUint16(datagram[4:], uint16(len(datagram)))
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		n := p.next()
		binary.BigEndian.PutUint16(datagram[0:], uint16(firstSourcePort+n%p.ports))
		binary.BigEndian.PutUint64(datagram[udpHeaderLen:], uint64(n))
		if _, err := p.conn.Write(datagram); err != nil {
			return fmt.Errorf("send probe %d: %w", n, err)
		}
	}
}

// next returns the number of the probe to send now.
func (p *prober) next() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent, p.passed = append(p.sent, time.Now()), append(p.passed, false)
	return len(p.sent) - 1
}

// receive records which probes arrive, until ctx ends.
func (p *prober) receive(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.sink.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var datagram [sequenceLen]byte
	for {
		if _, err := p.sink.Read(datagram[:]); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("receive probes: %w", err)
		}
		n := binary.BigEndian.Uint64(datagram[:])
		p.mu.Lock()
		if n < uint64(len(p.passed)) {
			p.passed[n] = true
		}
		p.mu.Unlock()
	}
}

// verdict waits until consecutive probes that were sent after a change all pass or are all
// dropped, and returns the time from the change to the first of them. A probe with the
// other result restarts the count, so the result is the moment between the last probe with
// the old verdict and the first with the new one.
func (p *prober) verdict(ctx context.Context, pass bool, changed time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, flipTimeout)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if first, ok := p.agreed(pass, changed, time.Now().Add(-patience)); ok {
			return first.Sub(changed), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("probes to %v do not get the result pass=%v: %w", p.target, pass, ctx.Err())
		case <-ticker.C:
		}
	}
}

// agreed compares the probes that were sent between changed and until, starting with the
// last one.
func (p *prober) agreed(pass bool, changed, until time.Time) (first time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := 0
	for n := len(p.sent) - 1; n >= 0 && p.sent[n].After(changed); n-- {
		if p.sent[n].After(until) {
			continue
		}
		if p.passed[n] != pass {
			break
		}
		first = p.sent[n]
		count++
	}
	return first, count >= agreeing
}
