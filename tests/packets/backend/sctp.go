package backend

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// sctp is the protocol number.
const sctp = 132

// Offsets and lengths in an SCTP packet with an INIT chunk (RFC 9260).
const (
	initLength     = 32 // 12 of the common header, 20 of the chunk
	checksumAt     = 8
	chunkTypeAt    = 12
	initiateTagAt  = 16
	chunkTypeINIT  = 1
	initChunkBytes = 20
)

// inits are the INIT chunks for which a host waits. The kernel may not support SCTP, so
// they are read from a raw socket, which is behind the netfilter hooks.
type inits struct {
	mu      sync.Mutex
	waiting map[uint32]chan struct{} // by initiate tag
}

// receiveInits reads the INIT chunks that arrive at a host.
func receiveInits(host *lab.Host) (*inits, error) {
	i := &inits{waiting: make(map[uint32]chan struct{})}
	return i, host.Receive(sctp, i.arrived)
}

// arrived handles an SCTP packet for the host.
func (i *inits) arrived(payload []byte) {
	if len(payload) >= initLength && payload[chunkTypeAt] == chunkTypeINIT {
		i.notify(binary.BigEndian.Uint32(payload[initiateTagAt:]))
	}
}

func (i *inits) notify(tag uint32) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if seen, ok := i.waiting[tag]; ok {
		close(seen)
		delete(i.waiting, tag)
	}
}

func (i *inits) wait(tag uint32) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	seen := make(chan struct{})
	i.waiting[tag] = seen
	return seen
}

func (i *inits) forget(tag uint32) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.waiting, tag)
}

// tags makes every INIT of this process unique.
var tags atomic.Uint32

// sendInit sends one INIT chunk and waits until it arrives.
func sendInit(ctx context.Context, from, to *host, at netip.AddrPort, silence time.Duration) (netpol.Outcome, error) {
	src := from.Addr(family(at.Addr()))
	tag := tags.Add(1)
	seen := to.inits.wait(tag)
	defer to.inits.forget(tag)
	if err := from.SendIP(initPacket(src, at, tag)); err != nil {
		return netpol.Unobservable, nil
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	select {
	case <-seen:
		return netpol.Connected, nil
	case <-timer.C:
		return netpol.TimedOut, nil
	case <-ctx.Done():
		return netpol.Unobservable, fmt.Errorf("wait for the INIT: %w", ctx.Err())
	}
}

// initPacket returns an IP packet with an INIT chunk. The source port depends on the tag,
// so that each packet is a new flow.
func initPacket(src netip.Addr, to netip.AddrPort, tag uint32) []byte {
	var packet []byte
	if src.Is4() {
		packet = make([]byte, 20, 20+initLength)
		packet[0], packet[8], packet[9] = 4<<4|5, 64, sctp
		copy(packet[12:], src.AsSlice())
		copy(packet[16:], to.Addr().AsSlice())
	} else {
		packet = make([]byte, 40, 40+initLength)
		packet[0], packet[5], packet[6], packet[7] = 6<<4, initLength, sctp, 64
		copy(packet[8:], src.AsSlice())
		copy(packet[24:], to.Addr().AsSlice())
	}
	payload := make([]byte, initLength)
	binary.BigEndian.PutUint16(payload, 32768+uint16(tag%28000))
	binary.BigEndian.PutUint16(payload[2:], to.Port())
	payload[chunkTypeAt], payload[chunkTypeAt+3] = chunkTypeINIT, initChunkBytes
	binary.BigEndian.PutUint32(payload[initiateTagAt:], tag)
	binary.BigEndian.PutUint32(payload[initiateTagAt+4:], 65536) // receiver window
	payload[initiateTagAt+9], payload[initiateTagAt+11] = 1, 1   // outbound and inbound streams
	binary.BigEndian.PutUint32(payload[initiateTagAt+12:], tag)  // initial TSN
	binary.LittleEndian.PutUint32(payload[checksumAt:], crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
	return append(packet, payload...)
}

func family(addr netip.Addr) lab.Family {
	if addr.Is4() {
		return lab.IPv4
	}
	return lab.IPv6
}
