package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Types of ICMP and ICMPv6 echo requests (RFC 792, RFC 4443).
const (
	echoRequest4 = 8
	echoRequest6 = 128
)

// ping sends an echo request and waits for the reply. It needs no capability but a group within the
// sysctl net.ipv4.ping_group_range, which applies to IPv6, too. The kernel fills in the checksum and
// an identifier, by which it tells the sockets' replies apart.
func ping(address netip.Addr, deadline time.Time) error {
	conn, err := dialPing(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	kind := byte(echoRequest4)
	if address.Is6() {
		kind = echoRequest6
	}
	const header = 8
	sent := append([]byte{kind, header - 1: 0}, conn.LocalAddr().String()...)
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	received := make([]byte, len(sent)+1)
	n, err := conn.Read(received)
	if err != nil {
		return err
	}
	if n != len(sent) || !bytes.Equal(received[header:n], sent[header:]) {
		return fmt.Errorf("received %q, sent %q", received[:n], sent)
	}
	return nil
}

// dialPing returns a socket for echo requests to an address. As it is connected, it also reports
// ICMP errors.
func dialPing(address netip.Addr) (net.Conn, error) {
	const protocolICMPv6 = 58 // in the header of IPv6
	family, protocol := syscall.AF_INET6, protocolICMPv6
	var to syscall.Sockaddr = &syscall.SockaddrInet6{Addr: address.As16()}
	if address.Is4() {
		family, protocol, to = syscall.AF_INET, syscall.IPPROTO_ICMP, &syscall.SockaddrInet4{Addr: address.As4()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, protocol)
	if err != nil {
		// Not wrapped, because the same error of an attempt means that the packet was rejected.
		return nil, fmt.Errorf("socket for echo requests: %v; net.ipv4.ping_group_range lists who may have one", err)
	}
	file := os.NewFile(uintptr(fd), "ping") // FileConn duplicates it
	defer file.Close()
	if err := syscall.Connect(fd, to); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(file)
}
