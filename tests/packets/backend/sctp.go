package backend

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/sctp"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// associations are the SCTP associations of a host. The kernel may not support SCTP, so it is
// spoken with raw sockets, which are behind the netfilter hooks: each INIT is answered, and
// answers go to those that wait for them.
type associations struct {
	host    *lab.Host
	mu      sync.Mutex
	waiting map[sctp.Packet]chan struct{} // by INIT
}

// receiveSCTP begins to answer at a host.
func receiveSCTP(host *lab.Host) (*associations, error) {
	a := &associations{host: host, waiting: make(map[sctp.Packet]chan struct{})}
	return a, host.Receive(sctp.Protocol, a.arrived)
}

// arrived handles an SCTP packet for the host.
func (a *associations) arrived(src, dst netip.Addr, payload []byte) {
	p, ok := sctp.Parse(payload)
	if !ok {
		return
	}
	if p.Type == sctp.InitAck {
		a.notify(p)
		return
	}
	// An answer that cannot be sent is one that the client does not get.
	_ = a.host.SendIP(ipPacket(dst, src, p.Answer(p.Tag)))
}

// notify ends the wait for the answer to the INIT that p answers.
func (a *associations) notify(p sctp.Packet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for init, answered := range a.waiting {
		if p.Answers(init) {
			close(answered)
			delete(a.waiting, init)
		}
	}
}

func (a *associations) wait(init sctp.Packet) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	answered := make(chan struct{})
	a.waiting[init] = answered
	return answered
}

func (a *associations) forget(init sctp.Packet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, init)
}

// tags makes every INIT of this process unique.
var tags atomic.Uint32

// associate sends one INIT and waits for the INIT ACK. The source port depends on the tag, so
// that each INIT is a new flow.
func associate(ctx context.Context, from *host, to netip.AddrPort, silence time.Duration) (netpol.Outcome, error) {
	tag := tags.Add(1)
	init := sctp.Packet{Type: sctp.Init, SrcPort: 32768 + uint16(tag%28000), DstPort: to.Port(), Tag: tag}
	answered := from.sctp.wait(init)
	defer from.sctp.forget(init)
	if err := from.SendIP(ipPacket(from.Addr(family(to.Addr())), to.Addr(), init)); err != nil {
		return netpol.Unobservable, nil
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	select {
	case <-answered:
		return netpol.Connected, nil
	case <-timer.C:
		return netpol.TimedOut, nil
	case <-ctx.Done():
		return netpol.Unobservable, fmt.Errorf("wait for the INIT ACK: %w", ctx.Err())
	}
}

// ipPacket returns an IP packet.
func ipPacket(src, dst netip.Addr, p sctp.Packet) []byte {
	payload := p.Bytes()
	var header []byte
	if src.Is4() {
		header = make([]byte, 20)
		header[0], header[8], header[9] = 4<<4|5, 64, sctp.Protocol
		copy(header[12:], src.AsSlice())
		copy(header[16:], dst.AsSlice())
	} else {
		header = make([]byte, 40)
		header[0], header[5], header[6], header[7] = 6<<4, byte(len(payload)), sctp.Protocol, 64
		copy(header[8:], src.AsSlice())
		copy(header[24:], dst.AsSlice())
	}
	return append(header, payload...)
}

func family(addr netip.Addr) lab.Family {
	if addr.Is4() {
		return lab.IPv4
	}
	return lab.IPv6
}
