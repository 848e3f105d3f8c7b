package steer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

const (
	// notificationsBuffer has room for the notifications of a large transaction of another
	// process. After an overrun the table is verified.
	notificationsBuffer = 4 << 20
	// datagramSize is larger than any datagram of the kernel.
	datagramSize = 1 << 17
)

func (netlinkKernel) listen(ctx context.Context, started func(), report func(commit)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer conn.Close()
	_ = conn.SetReadBuffer(notificationsBuffer) // after an error there are only more overruns
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("subscribe to nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	started()
	var s scanner
	buffer := make([]byte, datagramSize)
	for {
		datagram, err := receive(raw, buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			s = scanner{}
			report(commit{lost: true})
		case err != nil:
			return fmt.Errorf("receive notifications of nftables: %w", err)
		default:
			s.scan(datagram, report)
		}
	}
}

// receive waits for a datagram. If it is larger than buffer, it counts as lost.
func receive(raw syscall.RawConn, buffer []byte) ([]byte, error) {
	var n int
	var result error
	err := raw.Read(func(fd uintptr) (done bool) {
		n, _, result = unix.Recvfrom(int(fd), buffer, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return !errors.Is(result, unix.EAGAIN) && !errors.Is(result, unix.EINTR)
	})
	switch {
	case err != nil:
		return nil, err
	case result != nil:
		return nil, result
	case n > len(buffer):
		return nil, unix.ENOBUFS
	}
	return buffer[:n], nil
}

// scanner decodes the notifications of a commit: messages that name the table they are about,
// followed by a message with the generation and the committing process. A malformed message counts
// as one about our table. Most messages are about other tables and must be cheap.
type scanner struct {
	touched bool // a message since the last generation was about our table
}

func (s *scanner) scan(datagram []byte, report func(commit)) {
	for len(datagram) > 0 {
		if len(datagram) < unix.NLMSG_HDRLEN {
			s.touched = true
			return
		}
		length := int(binary.NativeEndian.Uint32(datagram))
		if length < unix.NLMSG_HDRLEN+nfgenLen || length > len(datagram) {
			s.touched = true
			return
		}
		kind, body := binary.NativeEndian.Uint16(datagram[4:]), datagram[unix.NLMSG_HDRLEN:length]
		switch {
		case kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN:
			report(s.commit(binary.NativeEndian.Uint32(datagram[12:]), body[nfgenLen:]))
			s.touched = false
		case aboutTable(body):
			s.touched = true
		}
		datagram = datagram[min(align(length), len(datagram)):]
	}
}

func (s *scanner) commit(port uint32, generation []byte) commit {
	return commit{
		port:       port,
		generation: uint32(nlattr.Number(nlattr.Get(generation, unix.NFTA_GEN_ID))),
		process:    nlattr.Text(nlattr.Get(generation, unix.NFTA_GEN_PROC_NAME)),
		pid:        uint32(nlattr.Number(nlattr.Get(generation, unix.NFTA_GEN_PROC_PID))),
		touched:    s.touched,
	}
}

var tableNameBytes = []byte(TableName)

// aboutTable reports whether a message is about our table or an object in it.
func aboutTable(body []byte) bool {
	if body[0] != unix.NFPROTO_INET {
		return false
	}
	table := nlattr.Get(body[nfgenLen:], tableArgument.kind)
	return table == nil || bytes.Equal(bytes.TrimRight(table, "\x00"), tableNameBytes)
}
