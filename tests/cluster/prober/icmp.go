package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
)

// A rejection is the origin, type and code of an ICMP error in the kernel's queue.
type rejection struct{ origin, kind, code byte }

// Origins of what the kernel queues (linux/errqueue.h).
const (
	fromICMP   = 2
	fromICMPv6 = 3
)

// rejections are the ICMP errors that say that the packet was not wanted (RFC 792, RFC 1812 and RFC
// 4443). Others, such as the lack of a route, may be over when the packet is sent again, and the
// kernel does not report them to connected sockets of UDP either.
var rejections = map[rejection]bool{
	{fromICMP, 3, 2}:   true, // no such protocol: a kernel without SCTP where no server runs
	{fromICMP, 3, 3}:   true, // port unreachable
	{fromICMP, 3, 9}:   true, // prohibited: the network
	{fromICMP, 3, 10}:  true, // prohibited: the host
	{fromICMP, 3, 13}:  true, // prohibited: the communication
	{fromICMPv6, 1, 1}: true, // prohibited
	{fromICMPv6, 1, 4}: true, // port unreachable
	{fromICMPv6, 1, 5}: true, // prohibited: the source
	{fromICMPv6, 1, 6}: true, // prohibited: the route
	{fromICMPv6, 4, 1}: true, // no such protocol
}

// queueErrors makes the kernel queue ICMP errors with the packets that they are about. Without the
// queue a raw socket reports those about any packet to its address, also of other attempts.
func queueErrors(to netip.Addr) func(network, address string, conn syscall.RawConn) error {
	level, option := syscall.IPPROTO_IPV6, syscall.IPV6_RECVERR
	if to.Is4() {
		level, option = syscall.IPPROTO_IP, syscall.IP_RECVERR
	}
	return func(_, _ string, conn syscall.RawConn) error { return setOption(conn, level, option) }
}

// rejected empties the queue of ICMP errors. It returns whether the queue had any, and the rejection
// of this INIT, if there is one.
func (a *association) rejected() (queued bool, rejected error) {
	conn, err := a.conn.SyscallConn()
	if err != nil {
		return false, err
	}
	err = conn.Control(func(fd uintptr) {
		packet, control := make([]byte, 1500), make([]byte, 512)
		for {
			n, size, _, _, err := syscall.Recvmsg(int(fd), packet, control, syscall.MSG_ERRQUEUE)
			if err != nil {
				return
			}
			queued = true
			if err := rejectionIn(control[:size]); err != nil && a.sent(packet[:n]) {
				rejected = err
			}
		}
	})
	if err != nil {
		return false, err
	}
	return queued, rejected
}

// sent reports whether an ICMP error quotes the INIT, of which it may have eight bytes only.
func (a *association) sent(quoted []byte) bool {
	return len(quoted) >= 8 && string(quoted[:8]) == string(a.init.Bytes()[:8])
}

// rejectionIn returns the error of the kernel if the control messages of a queued error have a
// rejection.
func rejectionIn(control []byte) error {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		ours := m.Header.Level == syscall.IPPROTO_IP && m.Header.Type == syscall.IP_RECVERR ||
			m.Header.Level == syscall.IPPROTO_IPV6 && m.Header.Type == syscall.IPV6_RECVERR
		if !ours || len(m.Data) < 16 { // struct sock_extended_err
			continue
		}
		r := rejection{origin: m.Data[4], kind: m.Data[5], code: m.Data[6]}
		if rejections[r] {
			return fmt.Errorf("ICMP type %d, code %d: %w", r.kind, r.code, syscall.Errno(binary.NativeEndian.Uint32(m.Data)))
		}
	}
	return nil
}
