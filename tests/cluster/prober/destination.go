package main

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// A destination is that of the packet that a socket of every address has received last.
type destination struct {
	// message has room for what the kernel reports about a packet, with the index of the interface
	// at ifindex. It is empty for a socket of one address.
	message []byte
	ifindex int
}

// receiveDestinations makes the kernel report the destination of each packet if the socket is bound
// to every address. The answer must come from there, and the kernel would choose the address of the interface that leads
// to the client: on a node, not that of the node.
func receiveDestinations(conn syscall.Conn, address net.IP) (destination, error) {
	if !address.IsUnspecified() {
		return destination{}, nil
	}
	level, option, size := syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO, syscall.SizeofInet6Pktinfo
	ifindex := syscall.CmsgLen(0) + syscall.SizeofInet6Pktinfo - 4
	if address.To4() != nil { // also where IPv6 is off
		level, option, size = syscall.IPPROTO_IP, syscall.IP_PKTINFO, syscall.SizeofInet4Pktinfo
		ifindex = syscall.CmsgLen(0)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return destination{}, err
	}
	return destination{make([]byte, syscall.CmsgSpace(size)), ifindex}, setOption(raw, level, option)
}

// asSource returns the message, of which the kernel has written size bytes, for the answer: its
// source is the destination, its way that of any packet.
func (d destination) asSource(size int) []byte {
	if size > 0 {
		clear(d.message[d.ifindex : d.ifindex+4])
	}
	return d.message[:size]
}

// setOption switches an option of a socket on.
func setOption(conn syscall.RawConn, level, option int) error {
	var failure error
	err := conn.Control(func(fd uintptr) { failure = syscall.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, os.NewSyscallError("setsockopt", failure))
}
