package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// accounting says whether the kernel counts the bytes of new connections in this network
// namespace.
const accounting = "/proc/sys/net/netfilter/nf_conntrack_acct"

// Traffic calls yield for each tracked connection with the packet that opened it, whether it was
// for the node itself, and the bytes that the connection has carried in both directions. If the
// kernel does not count bytes, counted is false and yield is not called. Traffic reads the whole
// table, which takes some microseconds of CPU time for each connection.
func Traffic(ctx context.Context, yield func(first packet.Packet, toHost bool, bytes uint64)) (counted bool, err error) {
	switch text, err := os.ReadFile(accounting); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil // no connection is tracked
	case err != nil:
		return false, fmt.Errorf("read whether bytes are counted: %w", err)
	case string(bytes.TrimSpace(text)) == "0":
		return false, nil
	}
	local, err := interfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("list the node's addresses: %w", err)
	}
	var sockets sockets
	defer sockets.close()
	t, err := sockets.open(ctx)
	if err != nil {
		return false, err
	}
	defer t.close()
	return true, traffic(t, local, yield)
}

// traffic implements Traffic for a table with bytes. It skips connections from the node itself,
// because policies do not apply to them.
func traffic(t table, local addrSet, yield func(packet.Packet, bool, uint64)) error {
	var faults faults
	for e, err := range t.entries(filter{}) {
		if err != nil {
			faults.add(err)
			continue
		}
		p, ok := e.first()
		if !ok || e.status&statusExpected != 0 || local.has(p.Src.Addr()) {
			continue
		}
		if err := recoverPanic(p, func() { yield(p, local.has(p.Dst.Addr()), e.bytes) }); err != nil {
			faults.add(err)
		}
	}
	return faults.err()
}
