package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/sctp"
)

// rawNetwork returns the name that package net has for raw sockets of SCTP.
func rawNetwork(ipv4 bool) string {
	if ipv4 {
		return fmt.Sprintf("ip4:%d", sctp.Protocol)
	}
	return fmt.Sprintf("ip6:%d", sctp.Protocol)
}

// rawError explains why there is no raw socket without the capability. It does not wrap that error,
// because the same error of an attempt means that the packet was rejected.
func rawError(err error) error {
	if call := new(os.SyscallError); errors.As(err, &call) && call.Syscall == "socket" && call.Err == syscall.EPERM {
		return fmt.Errorf("raw socket for SCTP: %v; it needs CAP_NET_RAW", call.Err)
	}
	return err
}

// afterHeader returns what follows the IP header of a packet that a raw socket has received. Only
// those of IPv4 return the header.
func afterHeader(packet []byte, ipv4 bool) []byte {
	if !ipv4 || len(packet) == 0 {
		return packet
	}
	return packet[min(int(packet[0]&15)*4, len(packet)):]
}
